#pragma once

#include <string>
#include <vector>

namespace trireme {

// Names a part of a step. Operators captured inside carry the name into explanations, traces and
// errors; scopes nest. Belongs to the thread that made it.
class Scope {
 public:
  explicit Scope(const std::string& name);
  ~Scope();

  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

namespace internal {

// The names of the calling thread's scopes, the outermost first.
const std::vector<std::string>& scope_stack();

}  // namespace internal
}  // namespace trireme
