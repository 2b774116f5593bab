#pragma once

#include <cstddef>
#include <string>

#include "trireme/graph/plan.h"

namespace trireme::internal {

// Returns the name of a node for error messages, for example
// "operator 'aten::mm' (node 3, module 'fc1', scope 'loss')".
std::string describe_node(const Plan& plan, size_t node);

}  // namespace trireme::internal
