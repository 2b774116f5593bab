#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace trireme::internal {

// Returns the names of the calling thread's scopes (scope.h), the outermost first.
const std::vector<std::string>& scope_stack();

// Leaves only the `keep` outermost scopes of the calling thread while it lives.
class SuspendScopes {
 public:
  explicit SuspendScopes(size_t keep);
  ~SuspendScopes();

  SuspendScopes(const SuspendScopes&) = delete;
  SuspendScopes& operator=(const SuspendScopes&) = delete;

 private:
  std::vector<std::string> suspended_;
};

}  // namespace trireme::internal
