#pragma once

#include <string>
#include <unordered_map>

#include "trireme/graph/guard.h"

namespace trireme::internal {

// Returns, by operator, the guards of kernels that take all tensors of a layer or an optimizer and
// do not check that their shapes fit together.
const std::unordered_map<std::string, Guard>& layer_guards();

}  // namespace trireme::internal
