#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/distribute/strategy.h"
#include "trireme/model/data_source.h"
#include "trireme/model/logs.h"
#include "trireme/model/model_options.h"
#include "trireme/optim/optimizer.h"
#include "trireme/train/restore_options.h"

namespace torch::nn {
class Module;
}

namespace trireme {
namespace internal {
class ModelCore;
}

// The parts of Model that do not depend on the type of the module.
class ModelBase {
 public:
  // Sets how the model is trained. Must be called before fit() and evaluate(). Throws Error for
  // options that contradict each other. Parameter servers keep the state of the first optimizer, so
  // under them a later call must name the same one with the same options.
  void compile(CompileOptions options);

  // Trains the model and returns the figures of all epochs. Throws Error: if compile() was not
  // called, if shapes do not agree, or if a step or a callback fails.
  //
  //   model.fit(tr::DatasetCreator(make_dataset), {.epochs = 5, .steps_per_epoch = 20});
  History fit(const DataSource& data, const FitOptions& options = {});
  // Does the same with tensors, whose first axis counts examples.
  History fit(const at::Tensor& x, const at::Tensor& y, const FitOptions& options = {});

  // Computes the loss and the metrics. Every example of a dataset or of tensors counts once, over
  // all workers.
  Logs evaluate(const DataSource& data, const EvaluateOptions& options = {});
  // Does the same with tensors.
  Logs evaluate(const at::Tensor& x, const at::Tensor& y, const EvaluateOptions& options = {});

  // Returns the net's outputs for all rows of `x`, in their order. Runs in this process, in
  // batches.
  at::Tensor predict(const at::Tensor& x, int64_t batch_size = 256);
  // Does the same for a dataset of batches, whose first tensors are the inputs.
  at::Tensor predict(const Dataset& data);

  // Writes the weights to a safetensors file, under the names of PyTorch's state_dict().
  void save(const std::string& path) const;
  // Sets the weights from safetensors: see load_state_dict().
  std::vector<std::string> load(const std::string& path, const RestoreOptions& options = {});
  // Returns a table of the net's layers, their parameters and where these are.
  std::string summary() const;

  // Returns the optimizer of the model. Throws Error before compile().
  const Optimizer& optimizer() const;
  // Returns the strategy.
  const Strategy& strategy() const;

 protected:
  // Calls forward() of the module.
  using Forward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;
  // Makes the module's parameters and buffers variables of the strategy. For class Model.
  ModelBase(std::shared_ptr<torch::nn::Module> module, Forward forward, const Strategy& strategy);
  ~ModelBase();

 private:
  std::shared_ptr<internal::ModelCore> core_;
};

// A net that is trained by calls of fit(), under any strategy:
//
//   tr::Model model(Net(), strategy);  // or, where a scope of the strategy is open: Model(Net())
//   model.compile({.optimizer = tr::Adam({.lr = 1e-3}), .loss = torch::nn::CrossEntropyLoss(),
//                  .metrics = {tr::Accuracy()}});
//   tr::History history = model.fit(x, y, {.batch_size = 100, .epochs = 10});
//   model.save("model.safetensors");
//
// `Net` is a module holder or a shared pointer to a module. Its forward() takes one tensor, or as
// many as the batches have inputs, and returns a tensor, or a tuple or vector of tensors. Not
// thread-safe. Copies are the same model.
template <internal::ModulePointer Net>
class Model : public ModelBase {
 public:
  // Makes the net's parameters and buffers variables of the strategy, by default of the one whose
  // scope is open. Throws Error in the scope of another strategy.
  explicit Model(Net net, const Strategy& strategy = current_strategy());

  // Returns the net. Under parameter servers its values are there: see Strategy::pull().
  Net net() const { return net_; }

 private:
  Net net_;
};

}  // namespace trireme

#include "trireme/model/model_inl.h"
