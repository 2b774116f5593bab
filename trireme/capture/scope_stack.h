#pragma once

#include <string>
#include <vector>

namespace trireme::internal {

// Returns the names of the calling thread's scopes (scope.h), the outermost first.
const std::vector<std::string>& scope_stack();

}  // namespace trireme::internal
