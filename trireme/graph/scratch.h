#pragma once

#include <ATen/core/Tensor.h>

// Copies that a capture works on.
namespace trireme::internal {

// A copy with memory of its own and the same sizes and strides, overlaps included, that begins at
// its storage's start. Needs gradients if the original does.
at::Tensor scratch_copy(const at::Tensor& tensor);

// Changes the contents of an argument's copy: other numbers of the same kind, in the same range.
// Elements move by one place (1) or are turned around (2), floats also shrink a little; 0 changes
// nothing.
void perturb_argument(at::Tensor& copy, int perturbation);
// Changes the contents of a variable's copy, which keeps what was positive positive.
void perturb_variable(at::Tensor& copy, int perturbation);

}  // namespace trireme::internal
