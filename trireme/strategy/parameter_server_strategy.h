#pragma once

#include <memory>
#include <string>
#include <utility>

#include "trireme/cluster/cluster_spec.h"
#include "trireme/cluster/resolver.h"
#include "trireme/graph/module.h"
#include "trireme/ps/parameter_servers.h"

namespace trireme {

using ParameterServerStrategyOptions = ParameterServersOptions;

// Variables on the ps tasks of a cluster, steps on its workers, which train asynchronously to each
// other; a ClusterCoordinator gives them their work. A copy means the same. Thread-safe.
//
//   tr::ParameterServerStrategy strategy(resolver, {.partitioner = tr::MinSizePartitioner()});
//   auto net = strategy.distribute<Net>();
//   auto scope = strategy.scope();
//   tr::Variable count("count", torch::zeros({}));
class ParameterServerStrategy {
 public:
  // Takes a resolver too. Waits until every ps task is up; throws Error if the cluster has none.
  explicit ParameterServerStrategy(const Cluster& cluster,
                                   ParameterServerStrategyOptions options = {});

  // Variables that this thread makes while it lives are on the ps tasks.
  [[nodiscard]] ParameterServers::Scope scope() const { return servers_.scope(); }

  // Makes a module, or a holder of one, whose parameters and buffers are on the ps tasks.
  template <typename Module, typename... Args>
  auto distribute(Args&&... args) const {
    const ParameterServers::Scope in = scope();
    if constexpr (requires(Module& holder) { *holder; }) {
      Module holder(std::forward<Args>(args)...);
      track(holder);
      return holder;
    } else {
      auto module = std::make_shared<Module>(std::forward<Args>(args)...);
      track(module);
      return module;
    }
  }

  const ClusterSpec& spec() const { return spec_; }
  const ParameterServerStrategyOptions& options() const { return options_; }
  const ParameterServers& servers() const { return servers_; }

 private:
  ClusterSpec spec_;
  ParameterServerStrategyOptions options_;
  ParameterServers servers_;
};

}  // namespace trireme
