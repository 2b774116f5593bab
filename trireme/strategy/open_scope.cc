#include "trireme/strategy/open_scope.h"

#include <memory>
#include <utility>
#include <vector>

namespace trireme {

// Defined here, so that the strategy's own files need not know that scopes are noted.
ParameterServers::Scope ParameterServerStrategy::scope() const {
  return internal::Access<ParameterServers>::scope(servers_,
                                                   std::make_shared<internal::OpenScope>(*this));
}

namespace internal {
namespace {

thread_local std::vector<ScopedStrategy> open_strategies;

}  // namespace

OpenScope::OpenScope(ScopedStrategy strategy) {
  open_strategies.push_back(std::move(strategy));
}

OpenScope::~OpenScope() {
  open_strategies.pop_back();
}

ScopedStrategy innermost_strategy() {
  return open_strategies.empty() ? ScopedStrategy() : open_strategies.back();
}

}  // namespace internal
}  // namespace trireme
