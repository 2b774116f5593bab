#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "trireme/capture/captured.h"

// Runs a step once and records every operator that it calls below autograd, as a graph. The kernels
// really run, but on scratch copies of the variables and on copies of the arguments. Variables,
// gradients and the random state are therefore the same after a capture as before it.
namespace trireme::internal {

// The step to capture. Takes its tensor arguments and returns its tensor results.
using StepBody = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// Runs `step` on copies of `inputs` and returns the graph of what it did. Throws Error, which names
// the operator, if the step does something that no graph can repeat. Exceptions of the step itself
// pass through.
//
// Thread-safe, but only one capture runs at a time in the process: other threads block until it
// ends. While it runs, it holds the gradients (`.grad`) of all variables. Must not be called inside
// a step that is being captured.
Captured capture(const StepBody& step, const std::vector<at::Tensor>& inputs,
                 const CaptureOptions& options);

// Returns true if the calling thread is inside a step that is being captured.
bool is_capturing();
// Returns the name of the step that the calling thread is capturing; empty if there is none.
std::string captured_function();

}  // namespace trireme::internal
