#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "trireme/base/access.h"
#include "trireme/cluster/cluster_spec.h"
#include "trireme/ps/partitioner.h"

namespace trireme {
namespace internal {
class BackendScope;
class ParameterServerBackend;
}  // namespace internal

// Options of ParameterServers.
struct ParameterServersOptions {
  // Name of the container that holds the variables. Programs that use the same container share its
  // variables by name. The first program to create a variable initialises it.
  std::string container = "default";
  // Decides how many shards each variable is cut into. Null keeps every variable whole.
  Partitioner partitioner = nullptr;
  // Decides which server holds each shard.
  Placement placement = Placement::kRoundRobin;
  // Longest time to wait for servers that are not up yet.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  // Folder with this program's certificates. Empty if the cluster uses no certificates.
  std::string certs;
};

// Keeps variables on the ps tasks of a cluster:
//
//   tr::ParameterServers servers(spec);
//   auto scope = servers.scope();             // variables made from here on live on the servers
//   tr::Sgd optimizer(net, {.lr = 0.1});      // so do net's parameters and the optimizer's state
//   auto step = tr::function("step", [&](const torch::Tensor& x, const torch::Tensor& y) {
//     torch::Tensor loss = torch::mse_loss(net->forward(x), y);
//     optimizer.minimize(loss);
//     return loss;
//   });
//   step(x, y);                               // pulls variables, computes here, pushes gradients
//
// A captured function makes one pull per server before it runs and one push per server after,
// however many variables it uses. The servers apply the gradients. Several programs may train the
// same variables at the same time: each update is applied once, and a reader never sees half of an
// update of a shard. Copies of this object refer to the same servers. Thread-safe.
class ParameterServers {
 public:
  // Blocks until every ps task of the cluster is up. Throws Error if the cluster has no ps tasks or
  // if some are not up after options.connect_timeout.
  explicit ParameterServers(const ClusterSpec& spec, ParameterServersOptions options = {});

  // While a Scope exists, variables that its thread makes live on the servers. Scopes may be
  // nested: the innermost one counts. A Scope must be destroyed on the thread that made it.
  class Scope {
   public:
    // Ends the scope.
    ~Scope();
    // Moves it, on the same thread.
    Scope(Scope&&) noexcept;

   private:
    friend class ParameterServers;
    explicit Scope(std::unique_ptr<internal::BackendScope> scope);

    std::unique_ptr<internal::BackendScope> scope_;
  };
  // Opens a scope on the calling thread.
  [[nodiscard]] Scope scope() const;

 private:
  friend struct internal::Access<ParameterServers>;

  std::shared_ptr<internal::ParameterServerBackend> backend_;
};

template <>
struct internal::Access<ParameterServers> {
  // Returns the object that reads and updates the variables.
  static const std::shared_ptr<ParameterServerBackend>& backend(const ParameterServers& servers) {
    return servers.backend_;
  }
};

}  // namespace trireme
