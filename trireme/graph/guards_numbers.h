#pragma once

#include <string>
#include <unordered_map>

#include "trireme/graph/guard.h"

namespace trireme::internal {

// Returns, by operator, the guards of kernels that trap in a division, loop forever or access
// memory outside of their tensors if an argument holds certain numbers.
const std::unordered_map<std::string, Guard>& number_guards();

}  // namespace trireme::internal
