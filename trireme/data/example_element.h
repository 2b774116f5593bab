#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trireme/data/element.h"

// Elements that are known by their specification only.
namespace trireme::internal {

// Returns an element of zeros. Sizes of -1, which stand for any size, become 1.
std::vector<at::Tensor> zeros(const ElementSpec& spec);
// Returns the size of an element in bytes. A floating-point number, since sizes that a peer has
// sent may overflow an integer.
double bytes_of(const ElementSpec& spec);
// Returns true if no size of the tensors is -1, which stands for any.
bool has_fixed_sizes(const ElementSpec& spec);

}  // namespace trireme::internal
