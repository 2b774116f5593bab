#pragma once

#include <ATen/core/Tensor.h>

// Copies of tensors that a capture works on.
namespace trireme::internal {

// Returns a copy with memory of its own. It has the same sizes and strides, overlaps included, and
// requires gradients if the original does. It starts at offset 0 of its storage. The original may
// be locked (memory_lock.h).
at::Tensor scratch_copy(const at::Tensor& tensor);

// Changes the contents of the copy of an argument, to detect that the program uses them as
// constants.
//   0  changes nothing.
//   1  moves each element by one place and shrinks floats by 1/64, so that values stay in range.
//   2  reverses the order of the elements and flips the sign of floats.
// Integers that are all equal are also increased, since moving them changes nothing.
void perturb_argument(at::Tensor& copy, int perturbation);
// Changes the contents of the copy of a variable. Positive numbers stay positive, as a variance
// must. Booleans are left alone.
void perturb_variable(at::Tensor& copy, int perturbation);

}  // namespace trireme::internal
