#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/function/module.h"
#include "trireme/model/data_source.h"
#include "trireme/model/logs.h"
#include "trireme/model/model.h"

namespace trireme {

// The figures of a checkpoint.
struct EvaluatedCheckpoint {
  std::string path;   // Path of the checkpoint.
  int64_t step = 0;   // Number of steps of the fit() until then.
  int64_t epoch = 0;  // Number of epochs of the fit() that were complete.
  Logs logs;          // Loss and metrics.
};

// Options of evaluate_checkpoints().
struct EvaluateCheckpointsOptions {
  // Options of each evaluation.
  EvaluateOptions evaluate = {.verbose = Verbose::kSilent};
  // Called with the figures of each checkpoint.
  std::function<void(const EvaluatedCheckpoint&)> on_result = nullptr;
  // Folder of TensorBoard, in which the figures become the run "evaluator". Empty for none.
  std::string tensorboard = "";
  // Time between two looks at the folder.
  std::chrono::milliseconds poll = std::chrono::seconds(1);
  // Longest time without a new checkpoint.
  std::chrono::milliseconds timeout = std::chrono::hours(24);
};

// Evaluates the checkpoints that the BackupAndRestore of another process makes, each as soon as it
// is there, until the fit() of that process has ended. This is the role of the evaluator, a process
// beside the cluster that does not slow down the training:
//
//   tr::Model model(Net());  // in this process; the training may use any strategy
//   model.compile({.loss = torch::nn::CrossEntropyLoss(), .metrics = {tr::Accuracy()}});
//   tr::evaluate_checkpoints(model, "backup", std::pair(x_test, y_test),
//                            {.tensorboard = "logs"});
//
// The folder need not exist yet. If evaluations take longer than the training needs from one
// checkpoint to the next, those that BackupAndRestore has removed meanwhile are left out. The last
// one is always evaluated, unless BackupAndRestore deletes it. Returns the figures of all
// evaluations, each of which is logged as well. Throws Error if a checkpoint has other variables
// than the model, and DEADLINE_EXCEEDED after `timeout`.
//
// In TensorBoard, a figure "loss" has the tags "epoch_loss", by the epoch, as those of
// TensorBoard's runs "train" and "validation", and "evaluation_loss_vs_iterations", by the step.
template <internal::ModulePointer Net>
std::vector<EvaluatedCheckpoint> evaluate_checkpoints(
    Model<Net>& model, const std::string& folder, const DataSource& data,
    const EvaluateCheckpointsOptions& options = {});

namespace internal {

// Does the same with a model whose variables are given.
std::vector<EvaluatedCheckpoint> evaluate_checkpoints(ModelBase& model,
                                                      const std::vector<Variable>& variables,
                                                      const std::string& folder,
                                                      const DataSource& data,
                                                      const EvaluateCheckpointsOptions& options);

}  // namespace internal

template <internal::ModulePointer Net>
std::vector<EvaluatedCheckpoint> evaluate_checkpoints(Model<Net>& model, const std::string& folder,
                                                      const DataSource& data,
                                                      const EvaluateCheckpointsOptions& options) {
  return internal::evaluate_checkpoints(model, track(model.net()), folder, data, options);
}

}  // namespace trireme
