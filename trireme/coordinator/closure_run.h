#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "trireme/base/clock.h"
#include "trireme/base/executor.h"
#include "trireme/coordinator/closure_batch.h"
#include "trireme/coordinator/closure_environment.h"
#include "trireme/coordinator/hosted_function.h"
#include "trireme/coordinator/received_closure.h"
#include "trireme/function/draws.h"
#include "trireme/ps/ps_step_run.h"

namespace trireme::internal {

// Runs one closure of a batch: begin -> draw -> pull -> compute -> push of each round -> end, or
// begin again if it repeats. One thread at a time works on it. Holds its batch, and is held by the
// work or the call to the servers that it waits for.
class ClosureRun : public std::enable_shared_from_this<ClosureRun> {
 public:
  // `index` is its place in the batch. `functions` has the function of the closure, then its
  // variants.
  ClosureRun(std::shared_ptr<ClosureBatch> batch, size_t index,
             std::vector<HostedFunctionPtr> functions, ReceivedClosure call,
             ElementSources sources);

  // Begins at once on this thread, or later on the executor if it has to wait for its turn.
  static void start(std::shared_ptr<ClosureRun> run);

 private:
  ClosureEnvironment& environment() const { return batch_->environment(); }
  bool takes_turns() const { return functions_[0]->takes_turns; }
  uint64_t seed() const;

  void begin();
  // Returns true if there is a function for the elements.
  bool draw();
  void keep_drawn();
  std::vector<at::Tensor> inputs() const;
  std::vector<at::Tensor> own_variables() const;
  void compute(std::vector<at::Tensor> pulled);
  void call_native();
  void push(size_t round);
  void end_repetition(std::vector<at::Tensor> results);
  void end(const absl::Status& error);
  void end(RunResult answer);

  // The executor runs the work; if that has ended, the closure ends.
  void continue_with(Work work);
  void note_time(Duration time);
  absl::Status cancelled() const;
  absl::Status of_user(const absl::Status& error) const;

  const std::shared_ptr<ClosureBatch> batch_;
  const size_t index_;
  const std::vector<HostedFunctionPtr> functions_;
  const HostedFunction* function_;  // the one that it uses now
  const ReceivedClosure call_;
  const ElementSources sources_;
  uint32_t repetition_ = 0;
  std::optional<Draws> draws_;
  std::optional<Time> turn_began_;
  Duration drawing_ = {};
  Duration busy_ = {};
  std::optional<PsStepRun> steps_;
};

}  // namespace trireme::internal
