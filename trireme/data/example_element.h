#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trireme/data/element.h"

// Elements that are known by their specification only.
namespace trireme::internal {

// Returns an element of zeros.
std::vector<at::Tensor> zeros(const ElementSpec& spec);
// Returns the size of an element in bytes. A floating-point number, since sizes that a peer has
// sent may overflow an integer.
double bytes_of(const ElementSpec& spec);

}  // namespace trireme::internal
