#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/metric/metric.h"
#include "trireme/model/callback.h"
#include "trireme/model/data_source.h"
#include "trireme/model/loss.h"
#include "trireme/model/verbose.h"
#include "trireme/optim/optimizer.h"

namespace trireme {

// A step of one's own, in place of forward, loss and update: takes the tensors of a batch and
// returns the figures to log, each a single number. Captured, like any function.
//
//   .train_step = [&](const std::vector<torch::Tensor>& batch) -> std::map<std::string,
//   torch::Tensor> {
//     torch::Tensor loss = my_loss(net->forward(batch[0]), batch[1]);
//     optimizer.minimize(loss);
//     return {{"loss", loss}};
//   }
using TrainStep =
    std::function<std::map<std::string, at::Tensor>(const std::vector<at::Tensor>& batch)>;

// Options of Model::compile().
struct CompileOptions {
  // The optimizer, as a recipe: tr::Adam({.lr = 0.001}).
  Optimizer optimizer = RmsProp({.lr = 0.001});
  // The loss. Of several outputs, each is compared with its target by the same loss.
  Loss loss = {};
  // The metrics, as recipes. They see the first output and the first target, without the weights of
  // the examples.
  std::vector<Metric> metrics = {};
  // Number of steps that a worker runs in one closure. Batch callbacks come once for all of them,
  // and the learning rate is the same for all of them.
  int steps_per_execution = 1;
  // Largest norm of all gradients together. 0 for no limit.
  double clip_norm = 0;
  // Number of batches of one update, which is that of a single batch with all their examples. Each
  // step draws that many, for each replica of the strategy; fewer at the end of the data are left
  // out.
  int accumulate_steps = 1;
  // Number of tensors of a batch that are inputs.
  int inputs = 1;
  // Number of tensors after them that are targets. One more tensor has the weights of the examples.
  int targets = 1;
  // Factors of the losses of several outputs. Empty for 1 each.
  std::vector<double> loss_weights = {};
  // A step of one's own, which uses an optimizer of its own. If `optimizer` is that optimizer, and
  // not a recipe, fit() follows its schedule, and checkpoints have its state.
  TrainStep train_step = nullptr;
  // True to run steps without capture, to debug them. Only without a cluster.
  bool run_eagerly = false;
};

// Options of Model::fit().
struct FitOptions {
  // Number of examples of a batch, if the data is given as tensors.
  int64_t batch_size = 32;
  // Number after the last epoch.
  int64_t epochs = 1;
  // Number of the first epoch.
  int64_t initial_epoch = 0;
  // Number of steps of an epoch. If it is not set, an epoch ends with the data.
  std::optional<int64_t> steps_per_epoch = std::nullopt;
  // True to shuffle data that is given as tensors.
  bool shuffle = true;
  // Data for the validation after an epoch.
  DataSource validation = {};
  // Share of the tensors, from their end, that is held out for the validation instead.
  double validation_split = 0;
  // Number of epochs from one validation to the next.
  int64_t validation_freq = 1;
  // Number of batches of a validation. If it is not set, it uses all data.
  std::optional<int64_t> validation_steps = std::nullopt;
  // Weights of examples by their class, the target's number. Others have the weight 1.
  std::map<int64_t, double> class_weight = {};
  // Weights of the examples, if the data is given as tensors.
  at::Tensor sample_weight = {};
  // Callbacks, which are called in this order.
  std::vector<AnyCallback> callbacks = {};
  // How progress is shown.
  Verbose verbose = Verbose::kAuto;
};

// Options of Model::evaluate().
struct EvaluateOptions {
  // Number of examples of a batch, if the data is given as tensors.
  int64_t batch_size = 32;
  // Number of batches. If it is not set, all data is used.
  std::optional<int64_t> steps = std::nullopt;
  // Weights of the examples, if the data is given as tensors.
  at::Tensor sample_weight = {};
  // How progress is shown.
  Verbose verbose = Verbose::kAuto;
};

}  // namespace trireme
