#pragma once

#include <functional>
#include <memory>
#include <string>

#include "trireme/distribute/strategy_kind.h"

namespace trireme::internal {

// The default strategy: variables and steps are in this process. Immutable.
class DefaultKind final : public StrategyKind, public std::enable_shared_from_this<DefaultKind> {
 public:
  // `evaluates` is true in the evaluator of a cluster, whose models do not train.
  explicit DefaultKind(bool evaluates = false) : evaluates_(evaluates) {}

  std::string name() const override { return "default"; }
  int replicas() const override { return 1; }
  std::shared_ptr<void> open_scope() override;
  void pull(const torch::nn::Module& module, const torch::nn::Module& local) override;
  void push(const torch::nn::Module& module, const torch::nn::Module& local) override;
  DatasetCreator distribute_dataset(const Dataset& dataset,
                                    const DistributeOptions& options) override;
  DatasetCreator distribute_function(
      std::function<Dataset(const InputContext&)> dataset_function) override;
  void check_trains() const override;
  std::shared_ptr<StepRunner> runner() override;

 private:
  const bool evaluates_;
};

}  // namespace trireme::internal
