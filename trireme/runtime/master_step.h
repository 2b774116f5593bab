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
  std::vector<at::Tensor> tensors;
  uint64_t seed = 0;
  uint64_t step = 0;
  Time deadline;
  uint64_t token = 0;  // by which it can be cancelled; 0: it cannot
};
using OnStepResult = absl::AnyInvocable<void(absl::StatusOr<std::vector<at::Tensor>>)>;

// Runs one step over the parts of a graph: asks each task for its part, gives the master's own part
// what the others made for it, and puts the outputs together. The first error ends the step on all
// tasks. While it takes long, the tasks that have not answered are asked whether they are there.
// Calls back once, after start().
std::shared_ptr<RunningStep> make_master_step(
    std::shared_ptr<MasterGraph> graph, std::shared_ptr<const MasterGraph::Registered> registered,
    std::shared_ptr<Worker> worker, StepInputs inputs, OnStepResult done);

}  // namespace trireme::internal
