#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/access.h"
#include "trireme/cluster/resolver.h"
#include "trireme/data/dataset.h"
#include "trireme/data/dataset_creator.h"
#include "trireme/data/input_context.h"
#include "trireme/data/sharding.h"
#include "trireme/distribute/strategy_options.h"
#include "trireme/optim/optimizer.h"
#include "trireme/strategy/parameter_server_strategy.h"
#include "trireme/strategy/per_replica.h"

namespace torch::nn {
class Module;
}

namespace trireme {
namespace internal {
class StrategyKind;
}

// While it exists, the variables that its thread makes are where the strategy puts them, and
// current_strategy() is the strategy. Scopes may be nested: the innermost one counts. Must be
// destroyed on the thread that made it.
class StrategyScope {
 public:
  // Ends the scope.
  ~StrategyScope();
  // Moves it, on the same thread.
  StrategyScope(StrategyScope&&) noexcept;

 private:
  friend class Strategy;
  struct Impl;
  explicit StrategyScope(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// A way to train: where variables are, and where steps run. Programs that use this class work with
// every strategy, which a flag can choose:
//
//   tr::Strategy strategy = tr::make_strategy(me, flags.strategy());
//   tr::Model model(Net(), strategy);
//
// A strategy of a class of its own, such as ParameterServerStrategy, converts to it. A handle:
// copies are the same strategy. Thread-safe.
class Strategy {
 public:
  // Makes the default strategy: variables and steps are in this process.
  Strategy();
  // Stands for a strategy with parameter servers.
  Strategy(const ParameterServerStrategy& strategy);  // NOLINT

  // Returns the name that make_strategy() takes for it.
  std::string name() const;

  // Opens a scope on the calling thread.
  [[nodiscard]] StrategyScope scope() const;

  // Makes a module, or a module holder, whose parameters and buffers are variables where the
  // strategy puts them. Returns a shared pointer to the module, or the holder. See
  // ParameterServerStrategy::distribute() for what can be done with it under parameter servers.
  //
  //   auto net = strategy.distribute<Net>(/*hidden=*/64);
  //
  // Throws Error in the scope of another strategy.
  template <typename Module, typename... Args>
  auto distribute(Args&&... args) const;
  // Does the same with a module that exists: makes its parameters and buffers variables, and
  // returns it. Throws Error in the scope of another strategy.
  template <internal::ModulePointer Module>
  Module distribute(Module module) const;
  // Copies the current values of a distributed module into `local`, an ordinary module of the same
  // structure. Throws Error if the structures differ.
  template <typename Module, typename Local>
  void pull(const Module& module, const Local& local) const;
  // Copies the values of `local` into a distributed module of the same structure. The state of
  // optimizers stays as it is. Throws Error if the structures differ.
  template <typename Module, typename Local>
  void push(const Module& module, const Local& local) const;

  // Calls `fn` once for each replica: see ParameterServerStrategy::run(). Within `fn`,
  // tr::all_reduce() combines a value of all replicas while they run.
  template <typename Fn, typename... Args>
  auto run(Fn&& fn, Args&&... args) const;
  // Combines the values of the replicas element by element.
  template <typename T>
  T reduce(ReduceOp op, const PerReplica<T>& values) const;
  // Puts the tensors of the replicas behind each other along an axis.
  at::Tensor gather(const PerReplica<at::Tensor>& values, int64_t axis = 0) const;
  // Returns the number of replicas that share a step. Divide the loss of a replica by it.
  int num_replicas_in_sync() const;

  // Returns a function that makes the dataset of each worker.
  DatasetCreator distribute_dataset(const Dataset& dataset, const DistributeOptions& options) const;
  // Does the same with Shard::kAuto for workers that train together. Under parameter servers each
  // worker gets the whole dataset.
  DatasetCreator distribute_dataset(const Dataset& dataset) const;
  // Does the same with the dataset that `dataset_function` returns for each worker, as it is.
  DatasetCreator distribute_datasets_from_function(
      std::function<Dataset(const InputContext&)> dataset_function) const;

 protected:
  // Stands for a strategy of this kind.
  explicit Strategy(std::shared_ptr<internal::StrategyKind> kind);

 private:
  friend struct internal::Access<Strategy>;
  internal::ReplicaSet replica_set() const;
  // Throws Error if a scope of another strategy is open.
  void check_scope() const;
  // Makes the parameters and buffers of a module variables of the strategy.
  void track_module(torch::nn::Module& module) const;
  void pull_module(const torch::nn::Module& module, const torch::nn::Module& local) const;
  void push_module(const torch::nn::Module& module, const torch::nn::Module& local) const;

  std::shared_ptr<internal::StrategyKind> kind_;
};

template <>
struct internal::Access<Strategy> {
  static StrategyKind& kind(const Strategy& strategy) { return *strategy.kind_; }
  static Strategy make(std::shared_ptr<StrategyKind> kind) { return Strategy(std::move(kind)); }
};

// Trains on the devices of one machine, synchronously. Each device runs a replica on its part of
// the batch, and has a copy of all variables. The gradients of the replicas are added up within the
// step, and every copy gets the same update. Logical CPUs share one memory, and so one copy.
//
//   tr::MirroredStrategy strategy({.devices = {"/cpu:0", "/cpu:1"}});
//   tr::Model model(Net(), strategy);
//
// Each replica draws random numbers from a generator of its own. Operators of a replica that write
// into a variable, such as those of batch norm into its statistics, change a copy of the replica;
// after the step the variable is the mean of the copies, or that of replica 0 if it has integers.
class MirroredStrategy : public Strategy {
 public:
  // Throws Error if a device is not one of this machine, or is named twice.
  explicit MirroredStrategy(const MirroredStrategyOptions& options = {});
};

// Trains on the devices of one machine, synchronously, as MirroredStrategy does, but keeps the
// variables on one device. Each step moves them to the replicas and the gradients back.
class CentralStorageStrategy : public Strategy {
 public:
  // Throws Error if a device is not one of this machine, or is named twice.
  explicit CentralStorageStrategy(const CentralStorageStrategyOptions& options = {});
};

// Trains on all workers of a cluster, synchronously. Every worker runs the same program, with a
// copy of all variables, on its part of each batch. The gradients of all replicas of all workers
// are added up within the step, and every worker makes the same update. So every worker calls
// fit(), save() and the rest; the files of worker 0 count.
//
//   tr::MultiWorkerMirroredStrategy strategy(me);
//   tr::Model model(Net(), strategy);
//
// The chief is the chief's task, or the first worker if the spec has none. New variables get its
// values. If a
// worker is lost or frozen, or makes other calls than the rest, the steps of all others throw an
// Error that names it. Without a cluster it trains as MirroredStrategy does.
class MultiWorkerMirroredStrategy : public Strategy {
 public:
  // Serves the task of this process and blocks until all workers are there. Logs which are missing,
  // and warns of ps tasks, for which it has no use. Throws Error if this process is not a worker of
  // the cluster, or if they are not all there in time.
  explicit MultiWorkerMirroredStrategy(const Cluster& cluster,
                                       const MultiWorkerMirroredStrategyOptions& options = {});
};

// A name that programs of other frameworks use. Trireme cannot reach a TPU.
class TpuStrategy : public Strategy {
 public:
  // Throws Error, which says why and names the strategies that exist.
  TpuStrategy();
};

// Returns the strategy of the innermost scope of the calling thread, or the default strategy.
Strategy current_strategy();

// Options of make_strategy().
struct MakeStrategyOptions {
  ParameterServerStrategyOptions ps = {};              // options of "ps"
  MirroredStrategyOptions mirrored = {};               // options of "mirrored"
  CentralStorageStrategyOptions central_storage = {};  // options of "central_storage"
  // Options of "multi_worker_mirrored".
  MultiWorkerMirroredStrategyOptions multi_worker_mirrored = {};
};

// Makes the strategy with which this process of the cluster trains, Cluster::strategy_name(): "ps",
// "multi_worker_mirrored", "mirrored", "central_storage" or "default". Logs a warning that names
// the jobs of the cluster for which it has no use. The evaluator gets the default strategy, with
// which its models can evaluate, but not fit(). Throws Error, which lists the names, for any other
// name, and if this process cannot train with the strategy: a task that serves, or one of several
// workers that would each train alone. Rethrows what the strategy's constructor throws.
//
//   const tr::Cluster me = tr::resolve(flags);
//   if (me.is_server()) return tr::Server(me).join();
//   tr::Strategy strategy = tr::make_strategy(me);
Strategy make_strategy(const Cluster& cluster, const MakeStrategyOptions& options = {});
// Does the same with a strategy of this name, unless it is empty.
Strategy make_strategy(const Cluster& cluster, const std::string& name,
                       const MakeStrategyOptions& options = {});

}  // namespace trireme

#include "trireme/distribute/strategy_inl.h"
