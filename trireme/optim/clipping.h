#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme {

// Scales gradients so that the norm of all of them together is at most max_norm. Returns the norm
// from before, as a tensor, so that it can be used in captured functions. Skips undefined
// gradients.
at::Tensor clip_grad_norm(std::vector<at::Tensor>& gradients, double max_norm);
// Scales each gradient so that its own norm is at most max_norm. Skips undefined gradients.
void clip_each_grad_norm(std::vector<at::Tensor>& gradients, double max_norm);
// Limits each element to the range from -limit to limit. Skips undefined gradients. Coalesces
// sparse gradients, which captured functions cannot do.
void clip_grad_value(std::vector<at::Tensor>& gradients, double limit);

}  // namespace trireme
