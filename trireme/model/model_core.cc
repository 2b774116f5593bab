#include "trireme/model/model_core.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/access.h"
#include "trireme/base/error.h"
#include "trireme/base/status.h"
#include "trireme/capture/eager_mode.h"
#include "trireme/distribute/strategy_kind.h"
#include "trireme/function/module.h"
#include "trireme/model/fit_loop.h"
#include "trireme/model/fit_state.h"
#include "trireme/model/module_mode.h"
#include "trireme/train/state_dict.h"

namespace trireme::internal {
namespace {

// Runs functions without capture while it exists, if the options of a model say so.
class EagerScope {
 public:
  explicit EagerScope(bool eagerly) : before_(runs_eagerly()) {
    if (eagerly) run_eagerly(true);
  }
  ~EagerScope() { run_eagerly(before_); }

  EagerScope(const EagerScope&) = delete;
  EagerScope& operator=(const EagerScope&) = delete;

 private:
  const bool before_;
};

// Calls a function that runs steps. Their errors become those of Trireme.
template <typename F>
auto with_errors(const F& run) {
  try {
    return run();
  } catch (const c10::Error& error) {
    rethrow_libtorch_error(error);
  }
}

void require_option(bool holds, const std::string& message) {
  if (!holds) throw Error(ErrorCode::kInvalidArgument, message);
}

void check_options(const FitOptions& options) {
  require_option(
      options.validation_freq >= 1,
      absl::StrCat("validation_freq is ", options.validation_freq, ", but must be 1 or more"));
  require_option(options.initial_epoch >= 0 && options.epochs >= options.initial_epoch,
                 absl::StrCat("fit() cannot run from epoch ", options.initial_epoch, " to epoch ",
                              options.epochs, "; epochs is the number after the last one"));
}

}  // namespace

void check_options(const CompileOptions& options) {
  require_option(options.train_step != nullptr || !options.loss.empty(),
                 "compile() was given no loss; set .loss, for instance to "
                 "torch::nn::CrossEntropyLoss(), or .train_step");
  require_option(options.steps_per_execution >= 1 && options.accumulate_steps >= 1 &&
                     options.inputs >= 1 && options.targets >= 1,
                 "steps_per_execution, accumulate_steps, inputs and targets of compile() must be 1 "
                 "or more");
  require_option(options.clip_norm >= 0, "clip_norm of compile() must be 0 or more");
  require_option(
      options.train_step == nullptr || (options.clip_norm == 0 && options.accumulate_steps == 1),
      "compile() was given a train_step together with clip_norm or accumulate_steps, "
      "which only the step itself can do; call minimize() in it with these options");
  require_option(options.loss_weights.empty() ||
                     options.loss_weights.size() == static_cast<size_t>(options.targets),
                 absl::StrCat("compile() was given ", options.loss_weights.size(),
                              " loss_weights for ", options.targets, " targets"));
  std::set<std::string> names{"loss"};
  for (const Metric& metric : options.metrics) {
    require_option(names.insert(metric.name()).second,
                   absl::StrCat("two figures have the name '", metric.name(),
                                "'; give one of the metrics another name"));
  }
}

ModelCore::ModelCore(std::shared_ptr<torch::nn::Module> module, Forward forward,
                     const Strategy& strategy)
    : module_(std::move(module)), strategy_(strategy) {
  parts_.net = module_;
  parts_.forward = std::move(forward);
  StrategyKind& kind = Access<Strategy>::kind(strategy);
  parts_.replica_set = {kind.replicas(), kind.workers()};
  parts_.replicas = parts_.replica_set.total();
  strategy.distribute(module_);
  variables_ = track(*module_);
}

void ModelCore::compile(CompileOptions options) {
  check_options(options);
  if (runner_ == nullptr) runner_ = Access<Strategy>::kind(strategy_).runner();
  if (options.run_eagerly && !runner_->runs_here()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        absl::StrCat("compile() was given run_eagerly under the strategy '", strategy_.name(),
                     "': its workers run captured graphs, not the code of this program. "
                     "Debug the model with the default strategy"));
  }
  require_option(
      parts_.replicas == 1 || options.clip_norm == 0 || options.accumulate_steps == 1,
      absl::StrCat("compile() was given clip_norm together with accumulate_steps under a strategy "
                   "with ",
                   parts_.replicas,
                   " replicas, which would limit the gradients of each replica, not their sum; "
                   "leave out one of the two options"));
  std::optional<Optimizer> optimizer;
  if (options.optimizer.is_bound()) {
    optimizer = options.optimizer;
  } else if (options.train_step == nullptr) {
    optimizer = options.optimizer.bind(variables_);
  }
  own_figures_ =
      options.train_step == nullptr ? nullptr : std::make_shared<std::vector<std::string>>();
  parts_.options = std::move(options);
  parts_.optimizer = std::move(optimizer);
  train_step_.reset();
  evaluate_step_.reset();
  compiled_ = true;
  step_ = 0;
}

void ModelCore::check_compiled(const char* call) const {
  if (compiled_) return;
  throw Error(ErrorCode::kFailedPrecondition,
              absl::StrCat(call,
                           "(): the model is not compiled; call compile() with an optimizer "
                           "and a loss first"));
}

void ModelCore::check_has_loss(const char* call) const {
  if (!parts_.options.loss.empty()) return;
  throw Error(ErrorCode::kFailedPrecondition,
              absl::StrCat(call,
                           ": the model was compiled with a train_step and without a loss, so "
                           "there is nothing to evaluate; give compile() a loss as well"));
}

const StepFunction& ModelCore::train_step(const std::map<int64_t, double>& class_weight) {
  if (train_step_ && class_weight == class_weight_) return *train_step_;
  require_option(own_figures_ == nullptr || class_weight.empty(),
                 "fit() was given class_weight, but the model has a train_step of its own; weight "
                 "the loss in that step");
  parts_.class_weights = ClassWeights(class_weight);
  class_weight_ = class_weight;
  train_step_.reset();  // so that the new one may have its name
  train_step_ =
      own_figures_ == nullptr ? make_train_step(parts_) : make_own_step(parts_, own_figures_);
  parts_.class_weights = ClassWeights();
  return *train_step_;
}

const StepFunction& ModelCore::evaluate_step() {
  if (!evaluate_step_) evaluate_step_ = make_evaluate_step(parts_);
  return *evaluate_step_;
}

FigureSums ModelCore::training_sums() const {
  return own_figures_ == nullptr ? FigureSums(parts_.options.metrics) : FigureSums(own_figures_);
}

History ModelCore::fit(const DataSource& data, const FitOptions& options) {
  check_compiled("fit");
  Access<Strategy>::kind(strategy_).check_trains();
  check_options(options);
  const FitData divided = divide(with_weights(data, options.sample_weight, "fit"), options);
  const OpenedData opened =
      open_training(*runner_, divided.training, options,
                    int64_t{parts_.options.accumulate_steps} * parts_.replicas);
  FitLoopOptions loop_options{.steps_per_execution = parts_.options.steps_per_execution,
                              .steps_per_epoch = opened.steps,
                              .validate = make_validation(divided.validation, options),
                              .validation_freq = options.validation_freq};
  if (const Verbose verbose = verbose_here(options.verbose); verbose != Verbose::kSilent) {
    loop_options.own_callbacks.push_back(std::make_shared<ProgressPrinter>(verbose));
  }
  const EagerScope eagerly(parts_.options.run_eagerly);
  const ModuleMode training(*module_, true);
  while (true) {
    FitState state({.module = module_,
                    .variables = variables_,
                    .optimizer = parts_.optimizer,
                    .runner = runner_,
                    .data = opened.data,
                    .callbacks = options.callbacks,
                    .workers = parts_.replica_set.workers},
                   {.epoch = options.initial_epoch,
                    .epochs = options.epochs,
                    .step = step_,
                    .steps_per_epoch = opened.expected_steps},
                   training_sums());
    const absl::Cleanup keep_step = [&] { step_ = state.place().step; };
    try {
      with_errors([&] { FitLoop(state, train_step(options.class_weight), loop_options).run(); });
      return state.history();
    } catch (const FitRestart&) {
    }
  }
}

std::function<void(Logs&)> ModelCore::make_validation(const DataSource& data,
                                                      const FitOptions& options) {
  if (data.empty()) return nullptr;
  check_has_loss("the validation of fit()");
  return [this,
          opened = open_evaluation(*runner_, data, options.batch_size, options.validation_steps,
                                   "validation_steps"),
          used = false](Logs& logs) mutable {
    if (std::exchange(used, true)) opened.data->restart();
    evaluate(opened, nullptr).write("val_", logs);
  };
}

Verbose ModelCore::verbose_here(Verbose verbose) const {
  return verbose == Verbose::kAuto && !agreement().is_chief() ? Verbose::kSilent : verbose;
}

std::optional<int64_t> ModelCore::evaluation_steps(const OpenedData& opened) const {
  if (opened.steps == 0) return std::nullopt;
  if (!opened.shared) return opened.steps;
  // Workers that train together take turns, beginning with worker 0.
  const WorkerAgreement workers = agreement();
  return (opened.steps - workers.worker() + workers.workers() - 1) / workers.workers();
}

// A worker that has drawn no batch has no sums, not even of the value 0.
FigureSums ModelCore::over_workers(const FigureSums& mine) const {
  const WorkerAgreement workers = agreement();
  if (workers.alone()) return mine;
  FigureSums all(parts_.options.metrics), of_worker(parts_.options.metrics);
  for (const auto& text : workers.all(mine.save(), "figures of an evaluation")) {
    of_worker.restore(value_or_throw(text));
    all.add(of_worker);
  }
  return all;
}

FigureSums ModelCore::evaluate(const OpenedData& opened, StepProgress* progress) {
  const ModuleMode evaluating(*module_, false);
  FigureSums sums(parts_.options.metrics);
  Executions executions(*runner_);
  Logs logs;
  bool ended = false;
  const auto absorb = [&](const Executions::Result& result) {
    ended = ended || result.steps < result.asked;
    sums.add(result.sums);
    if (progress == nullptr) return;
    sums.write("", logs);
    progress->update(sums.steps(), logs);
  };
  int64_t started = 0;
  const std::optional<int64_t> limit = evaluation_steps(opened);
  try {
    while (!ended && (!limit || started < *limit)) {
      int64_t steps = parts_.options.steps_per_execution;
      if (limit) steps = std::min(steps, *limit - started);
      executions.start(evaluate_step(), opened.data, steps);
      started += steps;
      while (const auto result = executions.take()) absorb(*result);
    }
    while (const auto result = executions.wait()) absorb(*result);
    runner_->join();
  } catch (...) {
    join_quietly(*runner_);
    agreement().fail("evaluate()");
    throw;
  }
  sums = over_workers(sums);
  require_option(sums.steps() > 0, "the data of an evaluation has no batches; give it examples");
  return sums;
}

Logs ModelCore::evaluate(const DataSource& data, const EvaluateOptions& options) {
  check_compiled("evaluate");
  check_has_loss("evaluate()");
  const OpenedData opened =
      open_evaluation(*runner_, with_weights(data, options.sample_weight, "evaluate"),
                      options.batch_size, options.steps, "steps");
  const EagerScope eagerly(parts_.options.run_eagerly);
  StepProgress progress(verbose_here(options.verbose), runner_->runs_here());
  progress.begin(0, opened.expected_steps);
  const FigureSums sums = with_errors([&] { return evaluate(opened, &progress); });
  Logs logs;
  sums.write("", logs);
  progress.end(sums.steps(), logs);
  return logs;
}

at::Tensor ModelCore::predict_batch(const std::vector<at::Tensor>& inputs) {
  if (!predict_) {
    predict_ = function("predict", [parts = parts_](const std::vector<at::Tensor>& batch) {
      const at::NoGradGuard no_gradients;
      return run_forward(parts, batch)[0];
    });
  }
  return with_errors([&] { return (*predict_)(inputs); });
}

at::Tensor ModelCore::predict(const at::Tensor& x, int64_t batch_size) {
  require_option(x.defined() && x.dim() > 0,
                 "predict() needs a tensor whose first axis counts rows");
  require_option(batch_size >= 1, "batch_size of predict() must be 1 or more");
  const EagerScope eagerly(parts_.options.run_eagerly);
  const ModuleMode evaluating(*module_, false);
  std::vector<at::Tensor> outputs;
  int64_t row = 0;
  do {
    const int64_t rows = std::min(batch_size, x.size(0) - row);
    outputs.push_back(predict_batch({x.narrow(0, row, rows)}));
    row += rows;
  } while (row < x.size(0));
  return at::cat(outputs);
}

at::Tensor ModelCore::predict(const Dataset& data) {
  require_option(data.size() != Dataset::kForever,
                 "predict() was given a dataset that never ends; use take()");
  const EagerScope eagerly(parts_.options.run_eagerly);
  const ModuleMode evaluating(*module_, false);
  std::vector<at::Tensor> outputs;
  Iterator batches = data.iterator();
  while (auto batch = batches.next_optional()) {
    batch->resize(std::min<size_t>(batch->size(), parts_.options.inputs));
    outputs.push_back(predict_batch(*batch));
  }
  require_option(!outputs.empty(), "predict() was given a dataset without batches");
  return at::cat(outputs);
}

void ModelCore::save(const std::string& path) const {
  save_state_dict(*module_, path);
}

std::vector<std::string> ModelCore::load(const std::string& path, const RestoreOptions& options) {
  return load_state_dict(*module_, path, options);
}

std::string ModelCore::summary() const {
  return summarize(*module_, variables_);
}

const Optimizer& ModelCore::optimizer() const {
  check_compiled("optimizer");
  if (parts_.optimizer) return *parts_.optimizer;
  throw Error(ErrorCode::kFailedPrecondition,
              "the model has a train_step of its own, whose optimizer it does not know; give "
              "compile() that optimizer as well");
}

}  // namespace trireme::internal
