#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <chrono>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/exec/branch_tuner.h"
#include "trireme/exec/branches.h"
#include "trireme/exec/node_runner.h"
#include "trireme/graph/plan.h"

namespace trireme::internal {

// When each operator of a run began and ended, for chrome://tracing and Perfetto.
class OperatorTrace {
 public:
  using Clock = std::chrono::steady_clock;

  void add(const NodePlan& node, size_t index, Clock::time_point begin, Clock::time_point end);
  std::string chrome_json() const;

 private:
  struct Event {
    std::string name;
    size_t node;
    Clock::time_point begin, end;
  };
  std::vector<Event> events_;
};

struct ReplayOptions {
  std::stop_token stop;            // checked before each operator
  bool check_numerics = false;     // fail at the first operator that makes a NaN
  OperatorTrace* trace = nullptr;  // filled when given
  // Fills the results of `empty` and its like with NaN or an odd number, so that a read of memory
  // that nobody wrote shows. For checks.
  bool poison_uninitialized = false;
  // Learns from the runs of this plan whether branches pay, and decides. Null: in captured order.
  BranchTuner* tuner = nullptr;
  // Runs in these branches, whatever the tuner has found to pay. For checks.
  const BranchSchedule* schedule = nullptr;
};

// Runs a plan once, in the captured order or, where its tuner has found that to pay and nobody
// looks on, in branches that cannot be told from it (branches.h). Writes go straight to the
// variables' tensors. The outputs share no memory with variables and constants. An error carries
// the operator, its module and its scope; variables written before it keep what was written.
absl::StatusOr<std::vector<at::Tensor>> replay(const Plan& plan,
                                               const std::vector<at::Tensor>& inputs,
                                               const std::vector<at::Tensor>& variables,
                                               at::Generator generator,
                                               const ReplayOptions& options = {});

}  // namespace trireme::internal
