#pragma once

#include <cstddef>
#include <string>

#include "trireme/graph/plan.h"

namespace trireme::internal {

// "operator 'aten::mm' (node 3, module 'fc1', scope 'loss')": how errors name a node.
std::string describe_node(const Plan& plan, size_t node);

}  // namespace trireme::internal
