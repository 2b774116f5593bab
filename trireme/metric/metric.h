#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "trireme/base/access.h"
#include "trireme/function/variable.h"

namespace trireme {
namespace internal {
class MetricRule;
}

// A figure that is computed over many batches, such as the share of right answers. All figures here
// are functions of sums over examples, so they are the same however the examples are divided into
// batches, and among workers. Use one of the classes below, in a model:
//
//   model.compile({.optimizer = tr::Adam(), .loss = loss, .metrics = {tr::Accuracy()}});
//
// or in a loop of your own, where the sums are variables that captured functions add to:
//
//   tr::Accuracy accuracy(strategy);
//   auto step = tr::function("train", [&](tr::Iterator& batches) {
//     ...
//     accuracy.update(y, logits > 0);
//   });
//   std::printf("accuracy %f\n", accuracy.result());
//
// A metric that is made without a strategy is a recipe: bind() makes a metric with sums of it.
//
// A handle: copies share the sums. Not synchronised, like the variables that hold them.
class Metric {
 public:
  // Returns the name under which logs and the history have it.
  const std::string& name() const;

  // Adds the examples of a batch. `targets` are what was expected, `outputs` what the net gave.
  // `weights` has one number for each example; undefined for 1 each. Throws Error, which names the
  // shapes, if they do not belong together, and for a recipe.
  void update(const at::Tensor& targets, const at::Tensor& outputs,
              const at::Tensor& weights = {}) const;
  // Returns the figure for the examples since the last reset; NaN if there were none. Throws Error
  // for a recipe.
  double result() const;
  // Sets the sums to 0. Throws Error for a recipe.
  void reset() const;

  // Returns false for a recipe.
  bool is_bound() const { return sums_.has_value(); }
  // Returns a metric with sums of its own, which are variables made here: inside of the scope of a
  // strategy they are where the strategy puts variables.
  Metric bind() const;

 protected:
  // Makes a recipe. For the classes below.
  explicit Metric(std::shared_ptr<const internal::MetricRule> rule);

 private:
  friend struct internal::Access<Metric>;

  std::shared_ptr<const internal::MetricRule> rule_;
  std::optional<Variable> sums_;
};

template <>
struct internal::Access<Metric> {
  static const MetricRule& rule(const Metric& metric) { return *metric.rule_; }
};

namespace internal {

// Makes a metric with sums in the scope of a strategy.
template <typename Strategy>
Metric bind_in(const Strategy& strategy, const Metric& recipe) {
  const auto scope = strategy.scope();
  return recipe.bind();
}

// A strategy: anything that variables can be made in the scope of.
template <typename T>
concept HasScope = requires(const T& strategy) { strategy.scope(); };

}  // namespace internal

// Options of Accuracy.
struct AccuracyOptions {
  std::string name = "accuracy";  // name in logs
  // Outputs of one number for each example mean true if they are above it: 0.5 for probabilities, 0
  // for logits.
  double threshold = 0.5;
};

// The share of examples whose output is right. `outputs` are one score for each class, where the
// largest is the answer and `targets` are the numbers of classes; or one number for each target,
// which is compared with the threshold; or answers themselves, of an integer type or bool.
class Accuracy : public Metric {
 public:
  // Makes a recipe.
  explicit Accuracy(AccuracyOptions options = {});
  // Makes a metric whose sums are where the strategy puts variables.
  template <internal::HasScope Strategy>
  explicit Accuracy(const Strategy& strategy, AccuracyOptions options = {})
      : Metric(internal::bind_in(strategy, Accuracy(std::move(options)))) {}
};

// Options of TopKAccuracy.
struct TopKAccuracyOptions {
  int k = 5;              // number of answers that count
  std::string name = "";  // name in logs; "top_K_accuracy" with the number if it is empty
};

// The share of examples whose class is among the k largest scores.
class TopKAccuracy : public Metric {
 public:
  // Makes a recipe.
  explicit TopKAccuracy(TopKAccuracyOptions options = {});
  // Makes a metric whose sums are where the strategy puts variables.
  template <internal::HasScope Strategy>
  explicit TopKAccuracy(const Strategy& strategy, TopKAccuracyOptions options = {})
      : Metric(internal::bind_in(strategy, TopKAccuracy(std::move(options)))) {}
};

// Options of Precision and Recall.
struct ThresholdOptions {
  std::string name = "";   // name in logs; that of the metric in small letters if it is empty
  double threshold = 0.5;  // outputs above it mean true
};

// The share of right answers among those that say true.
class Precision : public Metric {
 public:
  // Makes a recipe.
  explicit Precision(ThresholdOptions options = {});
  // Makes a metric whose sums are where the strategy puts variables.
  template <internal::HasScope Strategy>
  explicit Precision(const Strategy& strategy, ThresholdOptions options = {})
      : Metric(internal::bind_in(strategy, Precision(std::move(options)))) {}
};

// The share of examples that are true which the answers say is true.
class Recall : public Metric {
 public:
  // Makes a recipe.
  explicit Recall(ThresholdOptions options = {});
  // Makes a metric whose sums are where the strategy puts variables.
  template <internal::HasScope Strategy>
  explicit Recall(const Strategy& strategy, ThresholdOptions options = {})
      : Metric(internal::bind_in(strategy, Recall(std::move(options)))) {}
};

// Options of Auc.
struct AucOptions {
  std::string name = "auc";  // name in logs
  // Number of thresholds, between 0 and 1, at which the curve is computed. More are more exact.
  int thresholds = 200;
  // True if outputs are logits, of which the sigmoid is taken.
  bool from_logits = false;
};

// The area under the curve of true positives against false positives, by the trapezoidal rule over
// the thresholds.
class Auc : public Metric {
 public:
  // Makes a recipe.
  explicit Auc(AucOptions options = {});
  // Makes a metric whose sums are where the strategy puts variables.
  template <internal::HasScope Strategy>
  explicit Auc(const Strategy& strategy, AucOptions options = {})
      : Metric(internal::bind_in(strategy, Auc(std::move(options)))) {}
};

// The mean of the absolute differences of outputs and targets.
class MeanAbsoluteError : public Metric {
 public:
  // Makes a recipe.
  explicit MeanAbsoluteError(std::string name = "mean_absolute_error");
  // Makes a metric whose sums are where the strategy puts variables.
  template <internal::HasScope Strategy>
  explicit MeanAbsoluteError(const Strategy& strategy, std::string name = "mean_absolute_error")
      : Metric(internal::bind_in(strategy, MeanAbsoluteError(std::move(name)))) {}
};

// The mean over all examples of what a function returns for a batch: one number for each example,
// or a number that is their mean.
//
//   tr::Mean distance("distance", [](const torch::Tensor& targets, const torch::Tensor& outputs) {
//     return (targets - outputs).norm(2, 1);
//   });
class Mean : public Metric {
 public:
  // The function: targets and outputs of a batch to numbers.
  using Values = std::function<at::Tensor(const at::Tensor& targets, const at::Tensor& outputs)>;
  // Makes a recipe.
  Mean(std::string name, Values values);
  // Makes a metric whose sums are where the strategy puts variables.
  template <internal::HasScope Strategy>
  Mean(const Strategy& strategy, std::string name, Values values)
      : Metric(internal::bind_in(strategy, Mean(std::move(name), std::move(values)))) {}
};

}  // namespace trireme
