// The steps of a model, as captured functions. Sizes of a batch are part of the signature of a
// capture, so the number of examples may be a constant of the graph.
#include "trireme/model/model_steps.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/access.h"
#include "trireme/base/error.h"
#include "trireme/function/function.h"
#include "trireme/metric/metric_rule.h"
#include "trireme/model/stand_in.h"
#include "trireme/optim/clipping.h"
#include "trireme/strategy/per_replica.h"
#include "trireme/tensor/format_shape.h"

namespace trireme::internal {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

// An error of forward() or of the loss.
class StepFailure final : public c10::Error {
 public:
  using c10::Error::Error;
};

constexpr int64_t kLargestTable = 1 << 20;  // classes between the smallest and the largest

Error step_error(std::string message) {
  return Error(ErrorCode::kInvalidArgument, std::move(message));
}

// Throws an error of LibTorch that says more. A capture runs a step on other numbers too, and then
// expects that operators may fail, so the error must remain one of LibTorch until the capture is
// over (rethrow_libtorch_error()).
[[noreturn]] void fail(std::string message) {
  throw StepFailure({__func__, __FILE__, __LINE__}, std::move(message));
}

std::string shapes_of(const Tensors& tensors) {
  return absl::StrJoin(tensors, ", ", [](std::string* text, const Tensor& tensor) {
    absl::StrAppend(text, tensor.defined() ? format_shape(tensor.sizes()) : "undefined");
  });
}

// A batch, taken apart.
struct TrainingBatch {
  Tensors inputs, targets;
  Tensor weights;  // undefined if the examples have none
  int64_t rows = 0;
  bool stands_in = false;  // true if the rows only stand in for the examples of an empty batch

  int64_t examples() const { return stands_in ? 0 : rows; }
};

// Returns true if a batch has no examples. Batches without an axis of examples are rejected later.
bool is_empty(const Tensors& batch) {
  return !batch.empty() && batch[0].dim() > 0 && batch[0].size(0) == 0;
}

int64_t examples_of(const Tensors& batch) {
  if (!batch.empty() && batch[0].dim() > 0) return batch[0].size(0);
  throw step_error(
      absl::StrCat("a batch of the shapes ", shapes_of(batch),
                   " has no first axis that counts examples; add batch() to the dataset"));
}

// Rows of `filled` stand in for the examples of a batch that has none (stand_in.h).
TrainingBatch take_apart(const Tensors& drawn, const Tensors& filled,
                         const CompileOptions& options) {
  const bool stands_in = is_empty(drawn);
  const Tensors tensors = stands_in ? stand_in_rows(drawn, filled) : drawn;
  const size_t inputs = options.inputs, all = options.inputs + options.targets;
  if (tensors.size() != all && tensors.size() != all + 1) {
    throw step_error(absl::StrCat("a batch has ", tensors.size(), " tensors of the shapes ",
                                  shapes_of(tensors), ", but the model was compiled for ", inputs,
                                  " inputs and ", options.targets,
                                  " targets, and maybe the weights of the examples; change the "
                                  "dataset, or .inputs and .targets of compile()"));
  }
  TrainingBatch batch{.inputs = Tensors(tensors.begin(), tensors.begin() + inputs),
                      .targets = Tensors(tensors.begin() + inputs, tensors.begin() + all),
                      .rows = examples_of(tensors),
                      .stands_in = stands_in};
  if (tensors.size() == all) return batch;
  if (tensors[all].numel() != batch.rows) {
    throw step_error(absl::StrCat("the weights of a batch have the shape ",
                                  format_shape(tensors[all].sizes()), ", but there are ",
                                  batch.rows, " examples; give one weight for each"));
  }
  batch.weights = tensors[all].reshape({batch.rows});
  return batch;
}

// Returns the loss of one output. With weights it is the sum of the weighted losses of the
// examples, divided by the number of examples.
Tensor loss_of(const ModelParts& parts, const Tensor& output, const Tensor& target,
               const Tensor& weights, int64_t examples) {
  Tensor loss;
  try {
    loss = weights.defined() ? parts.options.loss.per_example(output, target)
                             : parts.options.loss(output, target);
  } catch (const c10::Error& error) {
    fail(absl::StrCat("the loss cannot be computed of an output of the shape ",
                      format_shape(output.sizes()), " and a target of the shape ",
                      format_shape(target.sizes()), ": ", error.msg(),
                      "; give targets of the shape and type that the loss takes"));
  }
  if (!loss.defined()) throw step_error("the loss returned an undefined tensor");
  const bool single = loss.dim() == 0 || (loss.numel() == 1 && examples != 1);
  if (single && !weights.defined()) return loss.dim() == 0 ? loss : loss.reshape({});
  if (single) {
    throw step_error(
        "the examples have weights, but the loss returned a single number; return one number for "
        "each example, such as (output - target).square().mean(1)");
  }
  if (loss.numel() != examples || loss.size(0) != examples) {
    throw step_error(absl::StrCat(
        "the loss has the shape ", format_shape(loss.sizes()), " for a batch of ", examples,
        " examples; it must be one number for each example, or their mean "
        "as a single number: reduce the other axes, with mean(1) for "
        "instance"));
  }
  if (!weights.defined()) return loss.mean();
  return (loss.reshape({examples}) * weights.to(loss.scalar_type())).sum() / examples;
}

Tensor total_loss(const ModelParts& parts, const TrainingBatch& batch, const Tensors& outputs) {
  if (outputs.size() != batch.targets.size()) {
    throw step_error(absl::StrCat("the net has ", outputs.size(), " outputs of the shapes ",
                                  shapes_of(outputs), ", but there are ", batch.targets.size(),
                                  " targets; each output needs its target, so set .targets of "
                                  "compile()"));
  }
  Tensor weights = batch.weights;
  if (!parts.class_weights.empty()) {
    const Tensor by_class = parts.class_weights.of(batch.targets[0], batch.rows);
    weights = weights.defined() ? weights * by_class : by_class;
  }
  Tensor total;
  for (size_t i = 0; i < outputs.size(); ++i) {
    Tensor loss = loss_of(parts, outputs[i], batch.targets[i], weights, batch.rows);
    if (!parts.options.loss_weights.empty()) loss = loss * parts.options.loss_weights[i];
    total = total.defined() ? total + loss : loss;
  }
  return total;
}

Tensor numbers(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble);
}

// Returns {share, examples, loss * examples}, where `share` is 1, or the part of a step that a
// replica or a batch of several is. A float32 loss is not converted, since small steps are counted
// in microseconds, unless an execution has so many steps or examples that their sums in float32
// would be inexact. The loss may not be a number, and must not spoil the others then.
Tensor leading_sums(const ModelParts& parts, double share, int64_t examples, const Tensor& loss) {
  constexpr int64_t kWhole = 1 << 24;  // float32 has all whole numbers up to this
  const bool as_float = loss.scalar_type() == at::kFloat && share == 1 &&
                        parts.options.steps_per_execution <= 100 &&
                        examples < kWhole / parts.options.steps_per_execution;
  const auto dtype = as_float ? at::kFloat : at::kDouble;
  const double count = static_cast<double>(examples);
  const at::NoGradGuard no_gradients;
  const Tensor sum = examples == 0 ? at::zeros({1}, dtype) : (loss.to(dtype) * count).reshape({1});
  return at::cat({at::tensor({share, count}, dtype), sum});
}

void add_metrics(const ModelParts& parts, const TrainingBatch& batch, const Tensors& outputs,
                 Tensors& sums) {
  for (const Metric& metric : parts.options.metrics) {
    const Tensor of_batch = Access<Metric>::rule(metric).sums_of(batch.targets[0].detach(),
                                                                 outputs[0].detach(), Tensor());
    sums.push_back(batch.stands_in ? at::zeros_like(of_batch) : of_batch);
  }
}

void add_sums(Tensors& total, const Tensors& sums) {
  if (total.empty()) {
    total = sums;
    return;
  }
  for (size_t i = 0; i < sums.size(); ++i) total[i] = total[i] + sums[i];
}

// The examples of a step. Their number in all workers is known when the step runs, and not when it
// is captured.
struct StepExamples {
  int64_t here = 0;    // number of examples of the replicas in this process
  Tensor all_workers;  // number of those of all workers; undefined if there is only this process
  Tensors filled;      // a batch of this process that has examples; empty if there is none

  // Returns the loss of a batch, in proportion to its share of the step's examples. Uses their
  // number in all workers even if the share is 0: a sum that a graph does not use is left out of
  // it, but all workers must make it.
  Tensor share_of(const Tensor& loss, int64_t examples) const {
    if (all_workers.defined()) {
      return loss * (static_cast<double>(examples) / all_workers).to(loss.scalar_type());
    }
    if (examples == 0) return loss * 0.0;
    if (examples == here) return loss;
    return loss * (static_cast<double>(examples) / static_cast<double>(here));
  }
};

// A step of one replica. Batches count by their examples, so that the step is the same as one with
// all examples in a single batch.
Tensors train_once(const ModelParts& parts, const std::vector<Tensors>& batches,
                   const StepExamples& examples) {
  const int count = static_cast<int>(batches.size());
  Tensors sums, gradients;
  for (const Tensors& drawn : batches) {
    const TrainingBatch batch = take_apart(drawn, examples.filled, parts.options);
    const KeptStatistics statistics(batch.stands_in ? parts.net.get() : nullptr);
    const Tensors outputs = run_forward(parts, batch.inputs);
    const Tensor loss = total_loss(parts, batch, outputs);
    Tensors of_batch{leading_sums(parts, 1.0 / (count * parts.replicas), batch.examples(), loss)};
    add_metrics(parts, batch, outputs, of_batch);
    add_sums(sums, of_batch);
    const Tensor share = examples.share_of(loss, batch.examples());
    if (count == 1) {
      const MinimizeOptions minimize = {.clip_norm = parts.options.clip_norm};
      batch.stands_in ? Access<Optimizer>::minimize_as_zeros(*parts.optimizer, share, minimize)
                      : parts.optimizer->minimize(share, minimize);
      statistics.restore();
      return sums;
    }
    Tensors found = Access<Optimizer>::gradients_of(*parts.optimizer, share);
    if (batch.stands_in) set_to_zeros(found);
    statistics.restore();
    gradients.resize(found.size());
    for (size_t k = 0; k < found.size(); ++k) {
      if (!found[k].defined()) continue;
      gradients[k] = gradients[k].defined() ? gradients[k] + found[k] : found[k];
    }
  }
  if (parts.options.clip_norm > 0) clip_grad_norm(gradients, parts.options.clip_norm);
  parts.optimizer->apply_gradients(gradients);
  return sums;
}

Tensors evaluate_once(const ModelParts& parts, Iterator& batches) {
  const at::NoGradGuard no_gradients;
  const auto drawn = batches.next_optional();
  if (!drawn) return {};
  const TrainingBatch batch = take_apart(*drawn, {}, parts.options);
  const Tensors outputs = run_forward(parts, batch.inputs);
  const Tensor loss = total_loss(parts, batch, outputs);
  Tensors sums{leading_sums(parts, 1, batch.examples(), loss)};
  add_metrics(parts, batch, outputs, sums);
  return sums;
}

// A step of the user's own, of one replica. Its figures count by its examples. It gets a part
// without examples as it is: only the step knows how to scale its loss.
Tensors run_own(const ModelParts& parts, const Tensors& batch, const StepExamples& examples,
                std::vector<std::string>& names) {
  const std::map<std::string, Tensor> figures = parts.options.train_step(batch);
  const int64_t mine = examples_of(batch);
  names.clear();
  Tensors values;
  for (const auto& [name, figure] : figures) {
    if (!figure.defined() || figure.numel() != 1) {
      throw step_error(
          absl::StrCat("train_step returned the figure '", name, "' with the shape ",
                       figure.defined() ? format_shape(figure.sizes()) : "of an undefined tensor",
                       ", but a figure must be a single number; use its mean()"));
    }
    names.push_back(name);
    const Tensor value = figure.detach().to(at::kDouble).reshape({});
    if (parts.replicas == 1) {
      values.push_back(value);
    } else {
      // A mean over a part without examples is not a number.
      values.push_back(examples.share_of(mine > 0 ? value : at::zeros({}, at::kDouble), mine));
    }
  }
  if (values.empty()) throw step_error("train_step returned no figures; return the loss at least");
  return {numbers({1.0 / parts.replicas, static_cast<double>(mine), 0}) + 0, at::stack(values)};
}

// Draws the batches of a step, accumulate_steps for each replica. Returns nullopt if there are too
// few.
std::optional<PerReplica<std::vector<Tensors>>> draw_batches(const ModelParts& parts,
                                                             Iterator& batches) {
  std::vector<std::vector<Tensors>> drawn(parts.replica_set.here);
  for (std::vector<Tensors>& of_replica : drawn) {
    for (int i = 0; i < parts.options.accumulate_steps; ++i) {
      auto batch = batches.next_optional();
      if (!batch) return std::nullopt;
      of_replica.push_back(*std::move(batch));
    }
  }
  return PerReplica<std::vector<Tensors>>(std::move(drawn));
}

// Returns a function that calls `step` once for each replica, with its batches and the number of
// examples of all replicas, and adds up the results.
template <typename Step>
StepFunction make_step(const std::string& name, const ModelParts& parts, Step step) {
  return function(name, [parts, step = std::move(step)](Iterator& batches) -> std::vector<Tensor> {
    auto drawn = draw_batches(parts, batches);
    if (!drawn) return {};
    StepExamples examples;
    for (const std::vector<Tensors>& of_replica : drawn->values()) {
      for (const Tensors& batch : of_replica) {
        if (batch.empty() || batch[0].dim() == 0 || is_empty(batch)) continue;
        examples.here += batch[0].size(0);
        if (examples.filled.empty()) examples.filled = batch;
      }
    }
    const auto run = [&](const std::vector<Tensors>& mine) { return step(parts, mine, examples); };
    if (parts.replicas == 1) return run((*drawn)[0]);
    WorkerGroup* const workers = parts.replica_set.workers;
    if (workers != nullptr) {
      // The elements of a dataset of one's own may all be batches without examples.
      examples.all_workers =
          sum_over_workers(*workers, at::full({}, examples.here, at::kDouble)).clamp_min(1);
    }
    return reduce_replicas(ReduceOp::kSum, run_replicas(parts.replica_set, run, *drawn), workers);
  });
}

}  // namespace

void rethrow_libtorch_error(const c10::Error& error) {
  const bool ours = dynamic_cast<const StepFailure*>(&error) != nullptr;
  throw Error(ErrorCode::kInvalidArgument, ours ? error.msg() : error.what_without_backtrace());
}

ClassWeights::ClassWeights(const std::map<int64_t, double>& weights) {
  if (weights.empty()) return;
  first_ = weights.begin()->first;
  const int64_t last = weights.rbegin()->first;
  if (last - first_ >= kLargestTable) {
    throw step_error(absl::StrCat("class_weight has classes from ", first_, " to ", last,
                                  ", which are more than ", kLargestTable,
                                  "; use sample_weight instead"));
  }
  table_ = at::ones({last - first_ + 3}, at::kFloat);
  for (const auto& [number, weight] : weights) {
    table_.mutable_data_ptr<float>()[number - first_ + 1] = static_cast<float>(weight);
  }
}

Tensor ClassWeights::of(const Tensor& targets, int64_t examples) const {
  if (targets.numel() != examples) {
    throw step_error(
        absl::StrCat("class_weight needs targets that are numbers of classes, one for "
                     "each example, but the targets of ",
                     examples, " examples have the shape ", format_shape(targets.sizes()),
                     "; use sample_weight instead"));
  }
  const Tensor classes = targets.reshape({examples}).to(at::kLong);
  return at::index_select(table_, 0, (classes - (first_ - 1)).clamp(0, table_.size(0) - 1));
}

Tensors run_forward(const ModelParts& parts, const Tensors& inputs) {
  Tensors outputs;
  try {
    outputs = parts.forward(inputs);
  } catch (const c10::Error& error) {
    throw step_error(absl::StrCat(
        "forward() of the net failed for ",
        inputs.size() == 1 ? "an input of the shape " : "inputs of the shapes ", shapes_of(inputs),
        ": ", error.msg(), "; give the net inputs of the shape that its layers take"));
  }
  if (!outputs.empty()) return outputs;
  throw step_error("forward() of the net returned no tensors; return the outputs");
}

StepFunction make_train_step(const ModelParts& parts) {
  return make_step("train_step", parts, train_once);
}

StepFunction make_evaluate_step(const ModelParts& parts) {
  return function("evaluate_step", [parts](Iterator& batches) -> std::vector<Tensor> {
    return evaluate_once(parts, batches);
  });
}

StepFunction make_own_step(const ModelParts& parts, const StepFigures& figures) {
  return make_step("train_step", parts,
                   [figures](const ModelParts& own, const std::vector<Tensors>& batches,
                             const StepExamples& examples) {
                     return run_own(own, batches[0], examples, *figures);
                   });
}

}  // namespace trireme::internal
