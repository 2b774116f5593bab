#pragma once

#include <memory>
#include <string>

#include "trireme/cluster/resolver.h"
#include "trireme/distribute/strategy_kind.h"
#include "trireme/distribute/strategy_options.h"
#include "trireme/function/local_backend.h"

namespace trireme::internal {

// A strategy that trains on the devices of this machine, alone or together with the same program on
// other workers. Mirrored and central storage differ in the devices that hold the variables.
class LocalKind final : public StrategyKind, public std::enable_shared_from_this<LocalKind> {
 public:
  // `workers` are those of the backend; null if there is only this process.
  LocalKind(std::string name, std::shared_ptr<LocalBackend> backend,
            std::shared_ptr<WorkerGroup> workers = nullptr);
  ~LocalKind() override;

  std::string name() const override { return name_; }
  int replicas() const override { return backend_->replicas(); }
  WorkerGroup* workers() const override { return workers_.get(); }
  std::shared_ptr<void> open_scope() override;
  void pull(const torch::nn::Module& module, const torch::nn::Module& local) override;
  void push(const torch::nn::Module& module, const torch::nn::Module& local) override;
  DatasetCreator distribute_dataset(const Dataset& dataset,
                                    const DistributeOptions& options) override;
  Shard default_shard() const override;
  DatasetCreator distribute_function(
      std::function<Dataset(const InputContext&)> dataset_function) override;
  std::shared_ptr<StepRunner> runner() override;

 private:
  const std::string name_;
  const std::shared_ptr<WorkerGroup> workers_;
  const std::shared_ptr<LocalBackend> backend_;
};

// Make the kinds of the strategies. Throw Error as their constructors do.
std::shared_ptr<LocalKind> make_mirrored_kind(const MirroredStrategyOptions& options);
std::shared_ptr<LocalKind> make_central_storage_kind(const CentralStorageStrategyOptions& options);
std::shared_ptr<LocalKind> make_multi_worker_mirrored_kind(
    const Cluster& cluster, const MultiWorkerMirroredStrategyOptions& options);

}  // namespace trireme::internal
