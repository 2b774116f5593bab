#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "trireme/cluster/cluster_spec.h"
#include "trireme/ps/partitioner.h"

namespace trireme {
namespace internal {
class BackendScope;
class ParameterServerBackend;
}  // namespace internal

struct ParameterServersOptions {
  // Programs that name the same container share variables by name; the first to come initialises.
  std::string container = "default";
  Partitioner partitioner = nullptr;  // none: variables are whole
  Placement placement = Placement::kRoundRobin;
  // How long servers that are not up yet are waited for.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  // The folder with this program's certificates; empty: none are used.
  std::string certs;
};

// Keeps variables on the ps tasks of a cluster:
//
//   tr::ParameterServers servers(spec);
//   auto scope = servers.scope();
//   tr::Variable w("w", torch::zeros({1000, 64}));     // on the servers
//   tr::Sgd optimizer(net, {.lr = 0.1});               // so are the net's parameters, and its
//   state auto step = tr::function("step", [&](...) { ... optimizer.minimize(loss); ... }); step(x,
//   y);                                        // pulls, runs here, pushes
//
// A captured function that uses them makes one pull per server before it runs and one push after,
// however many variables there are; the servers apply gradients. Other programs may do the same at
// the same time: an update is applied whole, and once. A copy means the same servers. Thread-safe.
class ParameterServers {
 public:
  // Waits until every ps task is up.
  explicit ParameterServers(const ClusterSpec& spec, ParameterServersOptions options = {});

  // Variables that this thread makes while it lives are on the servers.
  class Scope {
   public:
    explicit Scope(std::unique_ptr<internal::BackendScope> scope);
    ~Scope();
    Scope(Scope&&) noexcept;

   private:
    std::unique_ptr<internal::BackendScope> scope_;
  };
  [[nodiscard]] Scope scope() const;

  const std::shared_ptr<internal::ParameterServerBackend>& backend() const { return backend_; }

 private:
  std::shared_ptr<internal::ParameterServerBackend> backend_;
};

}  // namespace trireme
