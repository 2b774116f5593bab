#pragma once

#include <string>
#include <unordered_map>

#include "trireme/graph/guard.h"

namespace trireme::internal {

// Guards of kernels that take a whole layer's or optimizer's tensors and believe that they belong
// together; by operator.
const std::unordered_map<std::string, Guard>& layer_guards();

}  // namespace trireme::internal
