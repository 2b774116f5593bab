#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/distribute/step_runner.h"

namespace trireme::internal {

// Blocks until no step is under way, and ignores errors of steps. For a caller that throws an error
// itself.
void join_quietly(StepRunner& runner);

// Runs executions of several steps each, so many at once that all workers are busy, and returns
// their results in the order in which they were started. Not thread-safe.
class Executions {
 public:
  // The result of an execution.
  struct Result {
    std::vector<at::Tensor> sums;  // of the steps that had data; empty if none had
    int64_t asked = 0;             // number of steps that it was to run
    int64_t steps = 0;             // number of steps that had data
  };

  // `runner` must outlive the object.
  explicit Executions(StepRunner& runner);

  // Starts an execution of `steps` steps.
  void start(const StepFunction& function, const std::shared_ptr<StepData>& data, int64_t steps);
  // Returns the oldest result that was not returned yet. Returns nullopt if it is not there and
  // more executions may be started. Throws Error if a step failed.
  std::optional<Result> take();
  // Blocks until the oldest result is there and returns it; nullopt if there is none.
  std::optional<Result> wait();

 private:
  struct Started {
    StepSums sums;
    int64_t steps;
  };

  StepRunner& runner_;
  size_t most_ = 0;  // executions under way at which no more are started
  std::deque<Started> started_;
};

}  // namespace trireme::internal
