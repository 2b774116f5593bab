#pragma once

#include <variant>

#include "trireme/strategy/parameter_server_strategy.h"

namespace trireme::internal {

// A strategy whose scope is open: the default strategy, or one of a class of its own.
using ScopedStrategy = std::variant<std::monostate, ParameterServerStrategy>;

// Notes that a scope of a strategy is open on the thread that makes the object, for as long as the
// object lives. Scopes nest.
class OpenScope {
 public:
  explicit OpenScope(ScopedStrategy strategy);
  ~OpenScope();

  OpenScope(const OpenScope&) = delete;
  OpenScope& operator=(const OpenScope&) = delete;
};

// Returns the strategy of the calling thread's innermost scope.
ScopedStrategy innermost_strategy();

}  // namespace trireme::internal
