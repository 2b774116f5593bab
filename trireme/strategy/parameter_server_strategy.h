#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "trireme/cluster/cluster_spec.h"
#include "trireme/cluster/resolver.h"
#include "trireme/function/module.h"
#include "trireme/ps/parameter_servers.h"
#include "trireme/strategy/per_replica.h"

namespace trireme {

// Those of ParameterServersOptions mean the same.
struct ParameterServerStrategyOptions {
  std::string container = "default";
  Partitioner partitioner = nullptr;
  Placement placement = Placement::kRoundRobin;
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  std::string certs;
  int replicas = 1;  // on each worker, which run() runs in step
};

// Variables on the ps tasks of a cluster, steps on its workers, which train asynchronously to each
// other; a ClusterCoordinator gives them their work. A copy means the same. Thread-safe.
//
//   tr::ParameterServerStrategy strategy(resolver, {.partitioner = tr::MinSizePartitioner()});
//   auto net = strategy.distribute<Net>();
//   auto scope = strategy.scope();
//   tr::Variable count("count", torch::zeros({}));
//
// The replicas inside of a worker are synchronous: branches of one step, which sees one set of
// values and updates them once.
//
//   auto step = tr::function("step", [&](tr::Iterator& batches) {
//     auto losses = strategy.run([&](tr::Iterator& mine) {
//       auto [x, y] = mine.next<2>();
//       auto loss = torch::mse_loss(net->forward(x), y) / strategy.num_replicas_in_sync();
//       optimizer.minimize(loss);
//       return loss;
//     }, batches);
//     return strategy.reduce(tr::ReduceOp::kSum, losses);
//   });
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

  // Runs a function once for each replica, in the order of their ids (tr::replica_id()): in the
  // function that is being captured, else at once in this program. Of arguments that are PerReplica
  // each gets its own; all see the others. Gives PerReplica of what it returns, or nothing.
  //
  // With several replicas variables change when the last of them is done: by the sum of their
  // gradients, and by their assignments as the variable's aggregation says. A replica that reads a
  // variable after that sees it as it was before. Operators that write into a variable, as batch
  // norm's do, are not waited with: replica by replica. All replicas have to make the same changes,
  // in the same order; otherwise an Error names what and the replica.
  template <typename Fn, typename... Args>
  auto run(Fn&& fn, Args&&... args) const {
    return internal::run_replicas(num_replicas_in_sync(), fn, args...);
  }

  // Element by element over the replicas: a tensor, or what is made of tensors.
  template <typename T>
  T reduce(ReduceOp op, const PerReplica<T>& values) const {
    return internal::reduce_replicas(op, values);
  }

  int num_replicas_in_sync() const { return options_.replicas; }

  const ClusterSpec& spec() const { return spec_; }
  const ParameterServerStrategyOptions& options() const { return options_; }
  const ParameterServers& servers() const { return servers_; }

 private:
  ClusterSpec spec_;
  ParameterServerStrategyOptions options_;
  ParameterServers servers_;
};

}  // namespace trireme
