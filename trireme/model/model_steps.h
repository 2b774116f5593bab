#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/distribute/step_runner.h"
#include "trireme/function/replicas.h"
#include "trireme/model/figure_sums.h"
#include "trireme/model/model_options.h"

namespace torch::nn {
class Module;
}

namespace trireme::internal {

// Weights of examples by class, as a table that a graph can look numbers up in.
class ClassWeights {
 public:
  // Makes weights that are 1 for all classes.
  ClassWeights() = default;
  // Throws Error if the numbers of the classes are too far apart for a table.
  explicit ClassWeights(const std::map<int64_t, double>& weights);

  // Returns the weight of each example. Throws Error unless there is one target for each of them.
  at::Tensor of(const at::Tensor& targets, int64_t examples) const;
  // Returns true if all weights are 1.
  bool empty() const { return !table_.defined(); }

 private:
  at::Tensor table_;   // begins and ends with the weight 1 of classes outside of the table
  int64_t first_ = 0;  // class of element 1
};

// The parts of a model that its steps consist of. Steps must not hold the strategy: a closure of
// one would then keep alive the coordinator that runs it.
struct ModelParts {
  std::shared_ptr<const torch::nn::Module> net;
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)> forward;
  CompileOptions options;
  std::optional<Optimizer> optimizer;  // bound; nullopt if a train_step keeps it to itself
  ClassWeights class_weights;
  ReplicaSet replica_set = 1;  // replicas that share a step
  int replicas = 1;            // their number in all workers
};

// Throws an error of LibTorch that a step has thrown as an Error.
[[noreturn]] void rethrow_libtorch_error(const c10::Error& error);

// Returns the outputs of the net. Throws c10::Error, which names the shapes, if forward() fails.
std::vector<at::Tensor> run_forward(const ModelParts& parts, const std::vector<at::Tensor>& inputs);

// Returns a step that trains, and one that only computes the loss and the metrics. Their results
// are described at FigureSums. Each replica of a training step draws batches of its own. A step of
// an evaluation has no replicas: they would leave out the last batches if there are too few for all
// of them, and there are no gradients to share.
StepFunction make_train_step(const ModelParts& parts);
StepFunction make_evaluate_step(const ModelParts& parts);
// Returns a step that calls the train_step of the options, and sets the names of its figures when
// it is captured.
StepFunction make_own_step(const ModelParts& parts, const StepFigures& figures);

}  // namespace trireme::internal
