#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trireme/capture/function_step.h"
#include "trireme/exec/replay.h"
#include "trireme/graph/plan.h"

namespace trireme::internal {

// Runs a plan of a step in this process and returns its results. `plan` is the step's own plan, or
// one that was made of it for other devices, and `variables` are its variables. Takes the inputs,
// the random numbers and the names from `step`, and the way of running from `how`. Throws Error.
std::vector<at::Tensor> replay_step(const FunctionStep& step, const Plan& plan,
                                    const std::vector<at::Tensor>& variables,
                                    const StepOptions& options, ReplayOptions how);

}  // namespace trireme::internal
