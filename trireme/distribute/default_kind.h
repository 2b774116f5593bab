#pragma once

#include <functional>
#include <memory>
#include <string>

#include "trireme/distribute/strategy_kind.h"

namespace trireme::internal {

// The default strategy: variables and steps are in this process. Has no state.
class DefaultKind final : public StrategyKind {
 public:
  std::string name() const override { return "default"; }
  int replicas() const override { return 1; }
  std::shared_ptr<void> open_scope() override;
  void pull(const torch::nn::Module& module, const torch::nn::Module& local) override;
  void push(const torch::nn::Module& module, const torch::nn::Module& local) override;
  DatasetCreator distribute_dataset(const Dataset& dataset,
                                    const DistributeOptions& options) override;
  DatasetCreator distribute_function(
      std::function<Dataset(const InputContext&)> dataset_function) override;
  std::shared_ptr<StepRunner> runner() override;
};

}  // namespace trireme::internal
