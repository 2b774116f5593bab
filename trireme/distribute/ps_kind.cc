#include "trireme/distribute/ps_kind.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/ps/parameter_servers.h"

namespace trireme::internal {
namespace {

// An iterator on each worker, or one that they share.
class WorkerData final : public StepData {
 public:
  explicit WorkerData(PerWorkerDataset dataset) : dataset_(std::move(dataset)) {}

  void restart() override { dataset_.restart(); }
  Checkpointed position() const override { return dataset_; }
  const PerWorkerValues<Iterator>& iterator() const { return dataset_.iterator(); }

 private:
  const PerWorkerDataset dataset_;
};

// Runs steps on the workers, those of one call of run() as one closure.
class CoordinatorRunner final : public StepRunner {
 public:
  explicit CoordinatorRunner(const ParameterServerStrategy& strategy)
      : coordinator_(std::make_shared<ClusterCoordinator>(strategy)) {}

  std::shared_ptr<StepData> open(const DatasetCreator& data) override {
    return std::make_shared<WorkerData>(coordinator_->create_per_worker_dataset(data));
  }

  std::shared_ptr<StepData> open_shared(const Dataset& data, int64_t epochs) override {
    return std::make_shared<WorkerData>(coordinator_->create_per_worker_dataset(
        data, {.shard = Shard::kDynamic, .epochs = epochs}));
  }

  StepSums run(const StepFunction& function, const std::shared_ptr<StepData>& data,
               int times) override {
    const auto sums = coordinator_->schedule({.repeat = times, .sum_results = true}, function,
                                             static_cast<const WorkerData&>(*data).iterator());
    return StepSums([sums] { return sums.ready(); },
                    [sums, coordinator = coordinator_] { return fetch(sums, *coordinator); });
  }

  void join() override { coordinator_->join(); }
  bool runs_here() const override { return false; }
  int64_t runs_at_once() const override {
    return 2 * static_cast<int64_t>(coordinator_->workers().size()) + 2;
  }
  bool needs_steps_per_epoch() const override { return true; }
  std::optional<int64_t> losses_of_only_worker() const override {
    const std::vector<WorkerState> workers = coordinator_->workers();
    if (workers.size() != 1) return std::nullopt;
    return static_cast<int64_t>(workers[0].losses);
  }

 private:
  // A closure that was cancelled because another one failed has an error that does not say why.
  // done() then throws the first error, unless it was thrown before.
  static std::vector<at::Tensor> fetch(const RemoteValue<std::vector<at::Tensor>>& sums,
                                       ClusterCoordinator& coordinator) {
    try {
      return ClusterCoordinator::fetch(sums);
    } catch (const Error&) {
      coordinator.done();
      throw;
    }
  }

  const std::shared_ptr<ClusterCoordinator> coordinator_;
};

// The kinds that exist, by the backend of their strategy, which they keep alive.
struct PsKinds {
  Mutex mutex;
  std::map<const ParameterServerBackend*, std::weak_ptr<PsKind>> by_backend ABSL_GUARDED_BY(mutex);
};

}  // namespace

std::shared_ptr<PsKind> PsKind::of(const ParameterServerStrategy& strategy) {
  static auto& kinds = *new PsKinds();  // Never destroyed: strategies may be static objects.
  MutexLock lock(kinds.mutex);
  std::erase_if(kinds.by_backend, [](const auto& kind) { return kind.second.expired(); });
  auto& known = kinds.by_backend[Access<ParameterServers>::backend(strategy.servers()).get()];
  std::shared_ptr<PsKind> kind = known.lock();
  if (kind == nullptr) known = kind = std::make_shared<PsKind>(strategy);
  return kind;
}

PsKind::PsKind(ParameterServerStrategy strategy) : strategy_(std::move(strategy)) {}

std::shared_ptr<void> PsKind::open_scope() {
  return std::make_shared<ParameterServers::Scope>(strategy_.scope());
}

// Modules are passed as pointers because the strategy takes holders.
void PsKind::pull(const torch::nn::Module& module, const torch::nn::Module& local) {
  strategy_.pull(&module, &local);
}

void PsKind::push(const torch::nn::Module& module, const torch::nn::Module& local) {
  strategy_.push(&module, &local);
}

DatasetCreator PsKind::distribute_dataset(const Dataset& dataset,
                                          const DistributeOptions& options) {
  return strategy_.distribute_dataset(dataset, options);
}

DatasetCreator PsKind::distribute_function(
    std::function<Dataset(const InputContext&)> dataset_function) {
  return strategy_.distribute_datasets_from_function(std::move(dataset_function));
}

std::shared_ptr<StepRunner> PsKind::runner() {
  MutexLock lock(mutex_);
  if (runner_ == nullptr) runner_ = std::make_shared<CoordinatorRunner>(strategy_);
  return runner_;
}

}  // namespace trireme::internal
