#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/exec/branch_tuner.h"
#include "trireme/exec/branches.h"
#include "trireme/exec/node_runner.h"
#include "trireme/graph/plan.h"

namespace trireme::internal {

class OperatorTrace;  // exec/operator_trace.h

// How a plan runs whose operators belong to replicas: each replica on a thread of its own. Made
// once for a plan.
struct ReplicaLanes {
  // Makes the lanes. `replicas` has the replica of each node; -1 for none.
  ReplicaLanes(const Plan& plan, std::vector<int> replicas);

  std::vector<int> node_replicas;
  BranchSchedule schedule;
  // Number of the first replica among those of all processes that share the step. Decides which
  // random numbers the replicas draw.
  int first_replica = 0;
};

struct ReplayOptions {
  std::stop_token stop;            // cancels the run; checked before each operator
  bool check_numerics = false;     // true to fail at the first operator that produces a NaN
  OperatorTrace* trace = nullptr;  // gets the times of operators and communication, unless null
  // True to fill the results of `empty` and its variants with NaN or an odd number, so that a read
  // of unwritten memory becomes visible. For the capture's checks.
  bool poison_uninitialized = false;
  // True to allocate large results from the process's pool of memory (tensor/buffer_pool.h).
  bool pooled = false;
  // True for a graph that this process has captured itself: no check reads the contents of tensors
  // on accelerators, which would wait for the device (graph/guards.h). Must be false for a graph
  // from a peer.
  bool trusted = false;
  // Decides whether this run uses branches, and learns from it. Null for captured order. A tuner
  // serves the runs of one plan.
  BranchTuner* tuner = nullptr;
  // Runs the replicas of the plan at the same time, and ignores the tuner, unless null. Each
  // replica draws from a generator of its own. While another run has the helper threads, the
  // replicas run one after the other, and sums may be rounded differently (branches.h).
  const ReplicaLanes* replicas = nullptr;
  // Runs in these branches and ignores the tuner, unless null. For tests and benchmarks; must not
  // be combined with tracing or checks.
  const BranchSchedule* schedule = nullptr;
};

// Runs a plan once and returns its outputs. Operators run in captured order, or in branches on
// several threads (branches.h) if the tuner has measured these to be faster; the result is the same
// to the last bit. Replicas are the exception. A run that is traced or checked always uses captured
// order.
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
