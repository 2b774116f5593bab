#pragma once

#include <memory>
#include <variant>

#include "trireme/strategy/parameter_server_strategy.h"

namespace trireme::internal {

class StrategyKind;

// A strategy whose scope is open: the default strategy, one with parameter servers, or another kind
// (distribute/strategy_kind.h).
using ScopedStrategy =
    std::variant<std::monostate, ParameterServerStrategy, std::shared_ptr<StrategyKind>>;

// Notes that a scope of a strategy is open on the thread that makes the object, for as long as the
// object lives. Scopes nest. Throws Error in a replica.
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
