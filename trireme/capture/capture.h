#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "trireme/capture/captured.h"

// Runs a step once and writes down every operator below autograd that it calls, as a graph. The
// kernels really run, on scratch copies of the variables and on copies of the arguments, so that
// nothing but the graph comes of it: variables, gradients and random state are as before.
namespace trireme::internal {

// The step: from its tensor arguments to its tensor results.
using StepBody = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// Throws Error, which names the operator, when the step does what no graph can repeat. Whatever
// the step itself throws passes through. Any number of threads may capture at once.
Captured capture(const StepBody& step, const std::vector<at::Tensor>& inputs,
                 const CaptureOptions& options);

// Returns true if the calling thread is inside a step that is being captured.
bool is_capturing();
// The name of that step; empty if there is none.
std::string captured_function();

}  // namespace trireme::internal
