#pragma once

#include <functional>
#include <memory>
#include <string>

#include "trireme/data/dataset.h"
#include "trireme/data/dataset_creator.h"
#include "trireme/data/input_context.h"
#include "trireme/data/sharding.h"
#include "trireme/distribute/step_runner.h"
#include "trireme/function/worker_values.h"

namespace torch::nn {
class Module;
}

namespace trireme::internal {

// Implements a strategy: everything that differs between strategies. Thread-safe.
class StrategyKind {
 public:
  virtual ~StrategyKind() = default;

  virtual std::string name() const = 0;
  virtual int replicas() const = 0;  // number of replicas in this process
  // Returns the workers that train together; null if there is only this process.
  virtual WorkerGroup* workers() const { return nullptr; }
  // Opens a scope in which variables are made as the strategy makes them. The scope ends with the
  // object, on the same thread. May be null if variables are in the program's memory.
  virtual std::shared_ptr<void> open_scope() = 0;
  virtual void pull(const torch::nn::Module& module, const torch::nn::Module& local) = 0;
  virtual void push(const torch::nn::Module& module, const torch::nn::Module& local) = 0;
  virtual DatasetCreator distribute_dataset(const Dataset& dataset,
                                            const DistributeOptions& options) = 0;
  // Decides which part of a dataset each worker reads, unless the program does.
  virtual Shard default_shard() const { return Shard::kOff; }
  virtual DatasetCreator distribute_function(
      std::function<Dataset(const InputContext&)> dataset_function) = 0;
  // Throws Error if models of the strategy may evaluate, but not train.
  virtual void check_trains() const {}
  // Returns the runner of all models of the strategy, which is made by the first call.
  virtual std::shared_ptr<StepRunner> runner() = 0;
};

}  // namespace trireme::internal
