#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

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
  // Id of the job that the variables belong to: letters, digits, '.', '_' and '-'. Programs that
  // name the same job at the same time share its variables by name; the first program to create a
  // variable initialises it. When none of them runs any more, the next program that names the job
  // starts afresh, or goes on if it asks to resume. Empty for a new job of this object alone.
  std::string job;
  // True to continue with the variables that the last program of the job has left on the servers,
  // if there are any.
  bool resume = false;
  // True to keep the variables for some minutes when the job ends in order, so that the next
  // program can resume it. By default they are freed at once. After a crash they are always kept.
  bool keep = false;
  // Time after which servers assume that a program which they do not hear from has ended.
  std::chrono::milliseconds lease = std::chrono::seconds(3);
  // Name of the container that holds the variables. Containers separate the names of a job.
  std::string container = "default";
  // Decides how many shards each variable is cut into. Null keeps every variable whole.
  Partitioner partitioner = nullptr;
  // Decides which server holds each shard.
  Placement placement = Placement::kRoundRobin;
  // Longest time to wait for servers that are not up yet.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  // Folder with this program's certificates. Empty if the cluster uses no certificates.
  std::string certs;
  // Largest gradient in bytes that a step may push whole for a variable that it reads only by rows.
  // A step that would push a larger one is rejected when it is captured: each of its runs would
  // build and send as many bytes as the variable has, and the optimizer would change every row.
  uint64_t largest_whole_gradient = 64 << 20;
  // True to pass large variables and gradients through shared memory to ps tasks on the same
  // machine, instead of over their connections.
  bool shared_memory = true;
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
//
// Variables belong to a job (ParameterServersOptions::job). Once a newer program has taken over the
// job, all operations of this one throw Error with kAborted.
class ParameterServers {
 public:
  // Blocks until every ps task of the cluster is up, and until it is decided whether earlier
  // programs of the job are alive, which takes as long as their lease at most. Throws Error if the
  // cluster has no ps tasks or if some are not up after options.connect_timeout.
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
    friend struct internal::Access<ParameterServers>;
    explicit Scope(std::unique_ptr<internal::BackendScope> scope);

    std::unique_ptr<internal::BackendScope> scope_;
    std::shared_ptr<void> with_;  // An object that lives as long as the scope; null for none.
  };
  // Opens a scope on the calling thread.
  [[nodiscard]] Scope scope() const;

 private:
  friend struct internal::Access<ParameterServers>;

  // Shared by all copies. With the last of them, lets go of the variables of modules that are gone,
  // so that the program leaves its job. Declared first, to be destroyed after `backend_`.
  std::shared_ptr<void> last_;
  std::shared_ptr<internal::ParameterServerBackend> backend_;
};

template <>
struct internal::Access<ParameterServers> {
  // Returns the object that reads and updates the variables.
  static const std::shared_ptr<ParameterServerBackend>& backend(const ParameterServers& servers) {
    return servers.backend_;
  }
  // Opens a scope that keeps an object for as long as it lives.
  static ParameterServers::Scope scope(const ParameterServers& servers,
                                       std::shared_ptr<void> with) {
    ParameterServers::Scope scope = servers.scope();
    scope.with_ = std::move(with);
    return scope;
  }
};

}  // namespace trireme
