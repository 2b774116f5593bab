#pragma once

#include <ATen/core/Tensor.h>

// Copies that a capture works on.
namespace trireme::internal {

// A copy with memory of its own and the same sizes and strides, overlaps included, that begins at
// its storage's start. Needs gradients if the original does.
at::Tensor scratch_copy(const at::Tensor& tensor);

// Changes the contents of an argument's copy. 1: other numbers of the same kind, in the same range:
// elements move by one place, floats shrink a little. 2: elements in reverse order, floats with the
// other sign. 0 changes nothing.
void perturb_argument(at::Tensor& copy, int perturbation);
// Changes the contents of a variable's copy, which keeps what was positive positive.
void perturb_variable(at::Tensor& copy, int perturbation);

}  // namespace trireme::internal
