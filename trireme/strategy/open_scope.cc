#include "trireme/strategy/open_scope.h"

#include <memory>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/function/replicas.h"

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

// Replicas take turns on one thread, so the scope of one would be that of the others.
OpenScope::OpenScope(ScopedStrategy strategy) {
  if (in_replica()) {
    throw Error(ErrorCode::kFailedPrecondition,
                "the scope of a strategy is opened in a replica, but would hold for the other "
                "replicas, too; open it outside of run()");
  }
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
