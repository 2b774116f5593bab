#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/capture/function_step.h"
#include "trireme/exec/replay.h"
#include "trireme/graph/plan.h"

namespace trireme::internal {

// One call of a captured function. Everything must outlive the run.
struct StepCall {
  const Plan& captured;                                           // the plan of the function
  const std::vector<std::shared_ptr<VariableRecord>>& variables;  // variables of that plan
  const std::vector<at::Tensor>& inputs;
  uint64_t seed, step;  // decide the random numbers
};

// Runs a plan of a step in this process and returns its results. `plan` is the captured plan, or
// one that was made of it for other devices, and `variables` are its variables. Takes the way of
// running from `how`. Throws Error.
std::vector<at::Tensor> replay_step(const StepCall& call, const Plan& plan,
                                    const std::vector<at::Tensor>& variables,
                                    const StepOptions& options, ReplayOptions how);

}  // namespace trireme::internal
