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

// Records when each operator of a run began and ended. Not thread-safe; a traced run uses one
// thread.
class OperatorTrace {
 public:
  using Clock = std::chrono::steady_clock;

  // Adds the run of one operator. `index` is the node's number in the graph.
  void add(const NodePlan& node, size_t index, Clock::time_point begin, Clock::time_point end);
  // Returns the trace in the JSON format that chrome://tracing and Perfetto open. Times are in
  // microseconds since the first operator began.
  std::string chrome_json() const;

 private:
  struct Event {
    std::string name;
    size_t node;
    Clock::time_point begin, end;
  };
  std::vector<Event> events_;
};

// How a plan runs whose operators belong to replicas: each replica on a thread of its own. Made
// once for a plan.
struct ReplicaLanes {
  // Makes the lanes. `replicas` has the replica of each node; -1 for none.
  ReplicaLanes(const Plan& plan, std::vector<int> replicas);

  std::vector<int> node_replicas;
  BranchSchedule schedule;
};

struct ReplayOptions {
  std::stop_token stop;            // cancels the run; checked before each operator
  bool check_numerics = false;     // true to fail at the first operator that produces a NaN
  OperatorTrace* trace = nullptr;  // gets the times of all operators, unless null
  // True to fill the results of `empty` and its variants with NaN or an odd number, so that a read
  // of unwritten memory becomes visible. For the capture's checks.
  bool poison_uninitialized = false;
  // True to allocate large results from the process's pool of memory (tensor/buffer_pool.h).
  bool pooled = false;
  // Decides whether this run uses branches, and learns from it. Null for captured order. A tuner
  // serves the runs of one plan.
  BranchTuner* tuner = nullptr;
  // Runs the replicas of the plan at the same time, and ignores the tuner, unless null. Each
  // replica draws from a generator of its own.
  const ReplicaLanes* replicas = nullptr;
  // Runs in these branches and ignores the tuner, unless null. For tests and benchmarks; must not
  // be combined with tracing or checks.
  const BranchSchedule* schedule = nullptr;
};

// Runs a plan once and returns its outputs. Operators run in captured order, or in branches on
// several threads (branches.h) if the tuner has measured these to be faster; the result is the same
// to the last bit. A run that is traced or checked always uses captured order.
//
// Writes go directly to the variables' tensors. The outputs share no memory with variables and
// constants. An error names the operator, its module and its scope; variables that were written
// before it keep their new contents.
absl::StatusOr<std::vector<at::Tensor>> replay(const Plan& plan,
                                               const std::vector<at::Tensor>& inputs,
                                               const std::vector<at::Tensor>& variables,
                                               at::Generator generator,
                                               const ReplayOptions& options = {});

}  // namespace trireme::internal
