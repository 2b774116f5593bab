#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "trireme/base/access.h"
#include "trireme/cluster/cluster_spec.h"
#include "trireme/cluster/resolver.h"
#include "trireme/data/dataset.h"
#include "trireme/data/dataset_creator.h"
#include "trireme/data/input_context.h"
#include "trireme/data/sharding.h"
#include "trireme/ps/parameter_servers.h"
#include "trireme/strategy/per_replica.h"

namespace torch::nn {
class Module;
}

namespace trireme {
namespace internal {
class ReplicaCount;
}

// Options of a ParameterServerStrategy. The fields before `replicas` have the same meaning as in
// ParameterServersOptions.
struct ParameterServerStrategyOptions {
  // Id of the job that the variables belong to. Programs that name the same job at the same time
  // share its variables by name. Empty for a new job of this strategy alone.
  std::string job;
  // True to continue with the variables that the last program of the job has left.
  bool resume = false;
  // True to keep the variables for some minutes when the job ends in order.
  bool keep = false;
  // Time after which servers assume that a program which they do not hear from has ended.
  std::chrono::milliseconds lease = std::chrono::seconds(3);
  // Container of the variables within the job.
  std::string container = "default";
  // Splits variables into shards on several ps tasks. Null keeps each variable on one task.
  Partitioner partitioner = nullptr;
  // Decides which ps task holds a variable or a shard.
  Placement placement = Placement::kRoundRobin;
  // Time limit for all ps tasks to be up when the strategy is made.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  // Folder with this program's certificates; empty for that of the Cluster.
  std::string certs;
  // Largest gradient in bytes that a step may push whole for a variable that it reads only by rows.
  // A step that would push a larger one is rejected when it is captured: each of its runs would
  // build and send as many bytes as the variable has, and the optimizer would change every row.
  uint64_t largest_whole_gradient = 64 << 20;
  // True to pass large variables and gradients through shared memory between this program or the
  // workers and ps tasks on the same machine, instead of over their connections.
  bool shared_memory = true;
  // Number of synchronous replicas on each worker, which run() runs. Not set for one on each GPU of
  // a worker, and one on a worker without GPUs; all workers must have the same number of GPUs then.
  std::optional<int> replicas = {};
};

// Keeps variables on the ps tasks of a cluster and runs steps on its workers. The workers train
// asynchronously to each other; a ClusterCoordinator schedules their steps. Copies refer to the
// same servers. Thread-safe.
//
//   tr::ParameterServerStrategy strategy(resolver, {.partitioner = tr::MinSizePartitioner()});
//   auto net = strategy.distribute<Net>();
//   auto scope = strategy.scope();
//   tr::Variable count("count", torch::zeros({}));
//
// The replicas within a worker are synchronous: they are branches of one step, which reads each
// variable once and updates it once.
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
  // Connects to the ps tasks. Accepts a resolver in place of a cluster. Blocks until every ps task
  // is up. Throws Error if the cluster has none, or if one is not up after `connect_timeout`.
  explicit ParameterServerStrategy(const Cluster& cluster,
                                   ParameterServerStrategyOptions options = {});

  // Returns a scope object. Variables that this thread makes during its lifetime are on the ps
  // tasks.
  [[nodiscard]] ParameterServers::Scope scope() const;

  // Makes a module, or a module holder, whose parameters and buffers are on the ps tasks. Returns a
  // shared pointer to the module, or the holder.
  //
  // The program may change the module's tensors, to load weights for instance, until the variables
  // are created on the ps tasks: by the first optimizer, step or read that uses one of them. From
  // then on the module works in captured functions only. Any other use of its tensors, such as
  // net->forward() or torch::save(), throws a c10::Error that names the variable and where it
  // lives; use pull() and push().
  //
  //   auto net = strategy.distribute<Net>(/*hidden=*/64);  // a std::shared_ptr<Net>
  template <typename Module, typename... Args>
  auto distribute(Args&&... args) const;

  // Copies the current values of a distributed module into `local`, an ordinary module of the same
  // structure: to evaluate it in this program, to save it, or to look at it. Both may be holders or
  // shared pointers. Each ps task is asked once. Steps that run meanwhile may be seen in some
  // variables and not in others. Throws Error if the structures differ.
  //
  //   auto local = std::make_shared<Net>(/*hidden=*/64);
  //   strategy.pull(net, local);
  //   torch::save(local, "net.pt");
  template <typename Module, typename Local>
  void pull(const Module& module, const Local& local) const;
  // Copies the values of `local` into a distributed module of the same structure. The state of
  // optimizers stays as it is. Throws Error if the structures differ.
  template <typename Module, typename Local>
  void push(const Module& module, const Local& local) const;

  // Calls `fn` once for each replica, in the order of their ids (tr::replica_id()). Inside of a
  // function that is being captured, the calls become part of its graph; otherwise they run at once
  // in this program. A replica gets its own value of an argument that is a PerReplica, and all
  // replicas share the other arguments. Returns a PerReplica of the results, or nothing if `fn`
  // returns void.
  //
  // With several replicas, changes of variables are deferred until the last replica is done. Then
  // the sum of their gradients is applied, and their assignments are combined according to the
  // variable's aggregation. A replica that reads a variable which it has changed therefore sees the
  // old value. Operators that write into a variable, such as those of batch norm, are not deferred:
  // they run replica by replica. All replicas must make the same changes in the same order;
  // otherwise throws an Error that names the change and the replica.
  template <typename Fn, typename... Args>
  auto run(Fn&& fn, Args&&... args) const;

  // Combines the values of the replicas element by element. T is a tensor or a structure of
  // tensors.
  template <typename T>
  T reduce(ReduceOp op, const PerReplica<T>& values) const;

  // Returns a function that makes the dataset of each worker, for
  // ClusterCoordinator::create_per_worker_dataset(). The workers train asynchronously to each
  // other, so each gets the whole dataset, unless `options` tell how to divide it (see
  // shard_dataset()). The replicas of a worker share a batch: each draws its part of it. A batch
  // that cannot be divided evenly is divided into parts whose sizes differ by one, with a warning.
  //
  //   auto data = coordinator.create_per_worker_dataset(
  //       strategy.distribute_dataset(dataset, {.shard = tr::Shard::kAuto}));
  DatasetCreator distribute_dataset(const Dataset& dataset, const DistributeOptions& options = {
                                                                .shard = Shard::kOff}) const;
  // Does the same with the dataset that `dataset_function` returns for each worker, as it is: with
  // one batch for each replica.
  DatasetCreator distribute_datasets_from_function(
      std::function<Dataset(const InputContext&)> dataset_function) const;

  // Returns the number of replicas on each worker. Divide the loss of a replica by it. Unless the
  // options give the number, the first call asks the workers for their GPUs: it blocks until all
  // have answered, or until one has and the others had five seconds. Throws Error if the workers
  // have different numbers of GPUs, or if none has answered after `connect_timeout`.
  int num_replicas_in_sync() const;

  // Returns the tasks of the cluster.
  const ClusterSpec& spec() const { return spec_; }
  // Returns the options that it was made with.
  const ParameterServerStrategyOptions& options() const { return options_; }
  // Returns the ps tasks, which hold the variables.
  const ParameterServers& servers() const { return servers_; }

 private:
  friend struct internal::Access<ParameterServerStrategy>;

  void pull_module(const torch::nn::Module& module, const torch::nn::Module& local) const;
  void push_module(const torch::nn::Module& module, const torch::nn::Module& local) const;

  ClusterSpec spec_;
  ParameterServerStrategyOptions options_;
  ParameterServers servers_;
  std::shared_ptr<internal::ReplicaCount> replicas_;  // shared by all copies
};

template <>
struct internal::Access<ParameterServerStrategy> {
  // Returns the number of replicas without the strategy, and so without its servers.
  static const std::shared_ptr<ReplicaCount>& replicas(const ParameterServerStrategy& strategy) {
    return strategy.replicas_;
  }
};

}  // namespace trireme

#include "trireme/strategy/parameter_server_strategy_inl.h"
