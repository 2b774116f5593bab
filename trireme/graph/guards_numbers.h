#pragma once

#include <string>
#include <unordered_map>

#include "trireme/graph/guard.h"

namespace trireme::internal {

// Guards of kernels that follow the numbers in their arguments: into a division that the processor
// cannot do, into a loop that does not end, or out of their memory; by operator.
const std::unordered_map<std::string, Guard>& number_guards();

}  // namespace trireme::internal
