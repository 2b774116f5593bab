#include "trireme/distribute/strategy.h"

#include <ATen/ops/cat.h>
#include <torch/nn/module.h>

#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/capture/variable_backend.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/cluster/strategy_tasks.h"
#include "trireme/distribute/default_kind.h"
#include "trireme/distribute/local_kind.h"
#include "trireme/distribute/ps_kind.h"
#include "trireme/function/module.h"
#include "trireme/function/variable.h"
#include "trireme/strategy/module_pairs.h"
#include "trireme/strategy/open_scope.h"

namespace trireme {

struct StrategyScope::Impl {
  std::shared_ptr<void> scope;
};

StrategyScope::StrategyScope(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StrategyScope::~StrategyScope() = default;
StrategyScope::StrategyScope(StrategyScope&&) noexcept = default;

Strategy::Strategy() : kind_(std::make_shared<internal::DefaultKind>()) {}

Strategy::Strategy(const ParameterServerStrategy& strategy)
    : kind_(internal::PsKind::of(strategy)) {}

Strategy::Strategy(std::shared_ptr<internal::StrategyKind> kind) : kind_(std::move(kind)) {}

MirroredStrategy::MirroredStrategy(const MirroredStrategyOptions& options)
    : Strategy(internal::make_mirrored_kind(options)) {}

CentralStorageStrategy::CentralStorageStrategy(const CentralStorageStrategyOptions& options)
    : Strategy(internal::make_central_storage_kind(options)) {}

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(
    const Cluster& cluster, const MultiWorkerMirroredStrategyOptions& options)
    : Strategy(internal::make_multi_worker_mirrored_kind(cluster, options)) {}

TpuStrategy::TpuStrategy() {
  throw Error(
      ErrorCode::kUnimplemented,
      absl::StrCat("there is no strategy for TPUs: LibTorch's C++ library, on which Trireme "
                   "is built, cannot reach one",
                   internal::kStrategyNames));
}

std::string Strategy::name() const {
  return kind_->name();
}

StrategyScope Strategy::scope() const {
  return StrategyScope(
      std::make_unique<StrategyScope::Impl>(StrategyScope::Impl{kind_->open_scope()}));
}

void Strategy::check_scope() const {
  if (std::holds_alternative<std::monostate>(internal::innermost_strategy())) return;
  const Strategy open = current_strategy();
  const bool both_default = open.name() == "default" && name() == "default";
  if (open.kind_ != kind_ && !both_default) {
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("a module was given the strategy '", name(),
                             "' in the scope of another one, '", open.name(),
                             "'; leave the strategy out, or end the scope first"));
  }
}

// A module that was tracked before keeps its variables, wherever they are.
void Strategy::track_module(torch::nn::Module& module) const {
  const StrategyScope in = scope();
  for (const Variable& variable : track(module)) {
    const auto& record = internal::Access<Variable>::record(variable);
    if (record->backend == internal::current_backend()) continue;
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("variable '", variable.name(),
                             "' was made under another strategy than '", name(),
                             "'; call distribute() before an optimizer or another strategy takes "
                             "the module"));
  }
}

void Strategy::pull_module(const torch::nn::Module& module, const torch::nn::Module& local) const {
  kind_->pull(module, local);
}

void Strategy::push_module(const torch::nn::Module& module, const torch::nn::Module& local) const {
  kind_->push(module, local);
}

at::Tensor Strategy::gather(const PerReplica<at::Tensor>& values, int64_t axis) const {
  for (const at::Tensor& value : values.values()) {
    if (value.defined() && value.dim() > 0) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        "gather() was given a tensor without axes, and joins tensors along an axis; add one "
        "with unsqueeze(0), or use reduce()");
  }
  const at::Tensor here = at::cat(values.values(), axis);
  internal::WorkerGroup* const workers = kind_->workers();
  if (workers == nullptr) return here;
  internal::check_outside_of_functions("gather");
  return workers->concatenate(here.transpose(0, axis), "gather").transpose(0, axis);
}

internal::ReplicaSet Strategy::replica_set() const {
  kind_->check_trains();
  return {kind_->replicas(), kind_->workers()};
}

int Strategy::num_replicas_in_sync() const {
  return internal::ReplicaSet{kind_->replicas(), kind_->workers()}.total();
}

DatasetCreator Strategy::distribute_dataset(const Dataset& dataset,
                                            const DistributeOptions& options) const {
  return kind_->distribute_dataset(dataset, options);
}

DatasetCreator Strategy::distribute_dataset(const Dataset& dataset) const {
  return distribute_dataset(dataset, {.shard = kind_->default_shard()});
}

DatasetCreator Strategy::distribute_datasets_from_function(
    std::function<Dataset(const InputContext&)> dataset_function) const {
  return kind_->distribute_function(std::move(dataset_function));
}

Strategy current_strategy() {
  return std::visit(
      [](const auto& scoped) {
        using Scoped = std::decay_t<decltype(scoped)>;
        if constexpr (std::is_same_v<Scoped, std::monostate>) {
          return Strategy();
        } else if constexpr (std::is_same_v<Scoped, ParameterServerStrategy>) {
          return Strategy(scoped);
        } else {
          return internal::Access<Strategy>::make(scoped);
        }
      },
      internal::innermost_strategy());
}

Strategy make_strategy(const Cluster& cluster, const MakeStrategyOptions& options) {
  const std::string name = cluster.strategy_name();
  if (cluster.strategy == "tpu") TpuStrategy();
  if (!cluster.strategy.empty()) internal::check_has_duty(cluster, cluster.strategy);
  if (cluster.is_evaluator()) {
    return internal::Access<Strategy>::make(
        std::make_shared<internal::DefaultKind>(/*evaluates=*/true));
  }
  if (name == "ps") return ParameterServerStrategy(cluster, options.ps);
  if (name == "multi_worker_mirrored") {
    return MultiWorkerMirroredStrategy(cluster, options.multi_worker_mirrored);
  }
  internal::check_trains(cluster, name);
  internal::warn_of_unused_jobs(cluster, name);
  if (name == "mirrored") return MirroredStrategy(options.mirrored);
  if (name == "central_storage") return CentralStorageStrategy(options.central_storage);
  return Strategy();
}

Strategy make_strategy(const Cluster& cluster, const std::string& name,
                       const MakeStrategyOptions& options) {
  Cluster named = cluster;
  if (!name.empty()) named.strategy = name;
  return make_strategy(named, options);
}

}  // namespace trireme
