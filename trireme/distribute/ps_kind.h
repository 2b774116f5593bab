#pragma once

#include <functional>
#include <memory>
#include <string>

#include "trireme/base/mutex.h"
#include "trireme/distribute/strategy_kind.h"
#include "trireme/strategy/parameter_server_strategy.h"

namespace trireme::internal {

// The strategy with parameter servers: variables are on ps tasks, and a coordinator, which the
// first call of runner() makes, runs steps on the workers.
class PsKind final : public StrategyKind {
 public:
  // Returns the kind of a strategy. Copies of a strategy have the same one, as long as it is used,
  // so that their models share a coordinator.
  static std::shared_ptr<PsKind> of(const ParameterServerStrategy& strategy);

  explicit PsKind(ParameterServerStrategy strategy);

  std::string name() const override { return "ps"; }
  int replicas() const override { return strategy_.num_replicas_in_sync(); }
  std::shared_ptr<void> open_scope() override;
  void pull(const torch::nn::Module& module, const torch::nn::Module& local) override;
  void push(const torch::nn::Module& module, const torch::nn::Module& local) override;
  DatasetCreator distribute_dataset(const Dataset& dataset,
                                    const DistributeOptions& options) override;
  DatasetCreator distribute_function(
      std::function<Dataset(const InputContext&)> dataset_function) override;
  std::shared_ptr<StepRunner> runner() override;

 private:
  const ParameterServerStrategy strategy_;
  Mutex mutex_;
  std::shared_ptr<StepRunner> runner_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
