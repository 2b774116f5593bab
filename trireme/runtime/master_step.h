#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "trireme/runtime/master_graph.h"
#include "trireme/runtime/worker.h"

namespace trireme::internal {

struct StepInputs {
  std::vector<at::Tensor> tensors;  // inputs of the graph, in its order
  uint64_t seed = 0;                // seed and number of the step: the source of random numbers
  uint64_t step = 0;
  Time deadline;       // end of the whole step
  uint64_t token = 0;  // name under which the step can be cancelled; 0 if it cannot be
};
// Called with the outputs of a step, in the graph's order, or with its first error.
using OnStepResult = absl::AnyInvocable<void(absl::StatusOr<std::vector<at::Tensor>>)>;

// Creates a step over the parts of a graph. start() runs it: it asks each task to run its part,
// passes values that other parts made for the master to the master's own part, and collects the
// outputs. The first error ends the step on all tasks. While the step takes long, check_tasks()
// checks the health of the tasks that have not answered. Calls `done` once, after start().
std::shared_ptr<RunningStep> make_master_step(
    std::shared_ptr<MasterGraph> graph, std::shared_ptr<const MasterGraph::Registered> registered,
    std::shared_ptr<Worker> worker, StepInputs inputs, OnStepResult done);

}  // namespace trireme::internal
