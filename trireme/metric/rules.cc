// The rules of the metrics. Their sums are operators only, so that a captured step computes them
// where it runs, and they are float64, so that counts are exact up to 2^53 examples.
//
// Auc is Keras's: its thresholds are evenly spaced, and the curve is linear between them. It counts
// examples by the interval of thresholds that their output is in, once for positive and
// once for negative targets. The true and false positives at a threshold are the sums over the
// intervals above it.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/capture/device_request.h"
#include "trireme/metric/batch_shapes.h"
#include "trireme/metric/metric.h"
#include "trireme/metric/metric_rule.h"
#include "trireme/tensor/format_shape.h"

namespace trireme {
namespace internal {
namespace {

using at::Tensor;

constexpr double kNoExamples = std::numeric_limits<double>::quiet_NaN();

// Targets are true above it: 0 and 1, -1 and 1, bool, and probabilities.
constexpr double kTrueTarget = 0.5;

Origin origin_of(const std::string& metric) {
  return {"", absl::StrCat("metric '", metric, "'")};
}

bool is_answer(const Tensor& outputs) {
  return at::isIntegralType(outputs.scalar_type(), /*includeBool=*/true);
}

// Returns which outputs say true. Outputs of an integer type are answers themselves.
Tensor says_true(const Tensor& outputs, double threshold) {
  return outputs > (is_answer(outputs) ? 0.5 : threshold);
}

class NamedRule : public MetricRule {
 public:
  explicit NamedRule(std::string name) : name_(std::move(name)) {
    if (name_.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "a metric needs a name, under which logs have its figure");
    }
  }
  const std::string& name() const override { return name_; }

 private:
  std::string name_;
};

// A mean of values: the first sum is theirs, the second that of their weights.
class MeanRule : public NamedRule {
 public:
  using NamedRule::NamedRule;

  int64_t sums() const final { return 2; }
  Tensor sums_of(const Tensor& targets, const Tensor& outputs, const Tensor& weights) const final {
    const at::NoGradGuard no_gradients;
    return mean_sums(targets, outputs, weights);
  }
  double result(const Tensor& sums) const final {
    const double* sum = sums.const_data_ptr<double>();
    return sum[1] == 0 ? kNoExamples : sum[0] / sum[1];
  }

 private:
  virtual Tensor mean_sums(const Tensor& targets, const Tensor& outputs,
                           const Tensor& weights) const = 0;
};

class AccuracyRule final : public MeanRule {
 public:
  explicit AccuracyRule(AccuracyOptions options)
      : MeanRule(std::move(options.name)), threshold_(options.threshold) {}

 private:
  Tensor mean_sums(const Tensor& targets, const Tensor& outputs,
                   const Tensor& weights) const override {
    const bool answers = outputs.defined() && is_answer(outputs);
    const auto shape = answers ? shape_equal : shape_any;
    const ShapedBatch batch = shape(name(), targets, outputs);
    Tensor right;
    if (answers) {
      right = batch.outputs == batch.targets;
    } else if (batch.class_axis < 0) {
      right = (batch.outputs > threshold_) == (batch.targets > kTrueTarget);
    } else {
      right = batch.outputs.argmax(batch.class_axis) == batch.targets;
    }
    return weighted_sums(name(), right, weights);
  }

  double threshold_;
};

class TopKAccuracyRule final : public MeanRule {
 public:
  explicit TopKAccuracyRule(TopKAccuracyOptions options)
      : MeanRule(options.name.empty() ? absl::StrCat("top_", options.k, "_accuracy")
                                      : std::move(options.name)),
        k_(options.k) {
    if (k_ < 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  absl::StrCat("TopKAccuracyOptions::k is ", k_, "; it must be 1 or more"),
                  origin_of(name()));
    }
  }

 private:
  Tensor mean_sums(const Tensor& targets, const Tensor& outputs,
                   const Tensor& weights) const override {
    const ShapedBatch batch = shape_scores(name(), targets, outputs);
    if (outputs.size(batch.class_axis) < k_) {
      throw Error(ErrorCode::kInvalidArgument,
                  absl::StrCat("outputs of shape ", format_shape(outputs.sizes()), " have ",
                               outputs.size(batch.class_axis), " classes, fewer than the ", k_,
                               " answers that count; make it with a smaller k"),
                  origin_of(name()));
    }
    const Tensor best = std::get<1>(batch.outputs.topk(k_, batch.class_axis));
    const Tensor right = (best == batch.targets.unsqueeze(batch.class_axis)).any(batch.class_axis);
    return weighted_sums(name(), right, weights);
  }

  int k_;
};

class MeanAbsoluteErrorRule final : public MeanRule {
 public:
  using MeanRule::MeanRule;

 private:
  Tensor mean_sums(const Tensor& targets, const Tensor& outputs,
                   const Tensor& weights) const override {
    const ShapedBatch batch = shape_equal(name(), targets, outputs);
    const Tensor errors = (batch.outputs.to(at::kDouble) - batch.targets.to(at::kDouble)).abs();
    return weighted_sums(name(), errors, weights);
  }
};

class MeanOfRule final : public MeanRule {
 public:
  MeanOfRule(std::string name, Mean::Values values)
      : MeanRule(std::move(name)), values_(std::move(values)) {
    if (values_ == nullptr) {
      throw Error(ErrorCode::kInvalidArgument, "it needs a function that returns the values",
                  origin_of(this->name()));
    }
  }

 private:
  Tensor mean_sums(const Tensor& targets, const Tensor& outputs,
                   const Tensor& weights) const override {
    const Tensor& counted = targets.defined() && targets.dim() > 0 ? targets : outputs;
    const int64_t examples = counted.defined() && counted.dim() > 0 ? counted.size(0) : 1;
    // The mean of an empty batch would be NaN.
    if (examples == 0) return at::zeros({2}, at::kDouble);
    Tensor values = values_(targets, outputs);
    const bool is_mean = values.defined() && values.numel() == 1 && examples != 1;
    if (is_mean && !weights.defined()) {
      values = values.to(at::kDouble).reshape({});
      return at::stack(
          {values * examples, at::full({}, static_cast<double>(examples), values.options())});
    }
    if (!values.defined() || values.numel() != examples ||
        (values.dim() > 0 && values.size(0) != examples)) {
      throw shape_error(values, examples);
    }
    return weighted_sums(name(), values.reshape({examples}).to(at::kDouble), weights);
  }

  Error shape_error(const Tensor& values, int64_t examples) const {
    const bool is_mean = values.defined() && values.numel() == 1;
    return Error(
        ErrorCode::kInvalidArgument,
        absl::StrCat("its function returned ",
                     values.defined() ? "values of shape " + format_shape(values.sizes())
                                      : "an undefined tensor",
                     " for a batch of ", examples, " examples",
                     is_mean ? " that have weights, which a mean cannot take into account" : "",
                     ": it must return one number for each example, of shape [", examples, "]",
                     is_mean ? "" : ", or their mean. Take the mean over the other axes"),
        origin_of(name()));
  }

  Mean::Values values_;
};

// Precision and Recall: of the examples that count, the share that is a true positive. The sums:
// true positives, examples that count, all examples.
class ShareOfPositivesRule final : public NamedRule {
 public:
  enum class Counts { kSaidTrue, kAreTrue };
  ShareOfPositivesRule(ThresholdOptions options, Counts counts, const char* name)
      : NamedRule(options.name.empty() ? name : std::move(options.name)),
        counts_(counts),
        threshold_(options.threshold) {}

  int64_t sums() const override { return 3; }
  Tensor sums_of(const Tensor& targets, const Tensor& outputs,
                 const Tensor& weights) const override {
    const at::NoGradGuard no_gradients;
    const ShapedBatch batch = shape_equal(name(), targets, outputs);
    const Tensor said = says_true(batch.outputs, threshold_);
    const Tensor are = batch.targets > kTrueTarget;
    const Tensor right = weighted_sums(name(), said.logical_and(are), weights);
    const Tensor counted =
        weighted_sums(name(), counts_ == Counts::kSaidTrue ? said : are, weights);
    return at::stack({right[0], counted[0], counted[1]});
  }
  double result(const Tensor& sums) const override {
    const double* sum = sums.const_data_ptr<double>();
    if (sum[2] == 0) return kNoExamples;
    return sum[1] == 0 ? 0 : sum[0] / sum[1];
  }

 private:
  Counts counts_;
  double threshold_;
};

class AucRule final : public NamedRule {
 public:
  explicit AucRule(AucOptions options)
      : NamedRule(std::move(options.name)),
        intervals_(options.thresholds - 1),
        from_logits_(options.from_logits) {
    if (options.thresholds < 3) {
      throw Error(ErrorCode::kInvalidArgument,
                  absl::StrCat("AucOptions::thresholds is ", options.thresholds,
                               "; it must be 3 or more, since the first and the last one are at "
                               "the ends of the curve"),
                  origin_of(name()));
    }
    const SuspendDeviceCheck no_device_check;
    thresholds_ = at::arange(1, intervals_, at::kDouble) / static_cast<double>(intervals_);
  }

  int64_t sums() const override { return 2 * intervals_; }
  Tensor sums_of(const Tensor& targets, const Tensor& outputs,
                 const Tensor& weights) const override {
    const at::NoGradGuard no_gradients;
    const ShapedBatch batch = shape_equal(name(), targets, outputs);
    Tensor scores = batch.outputs.to(at::kDouble);
    if (from_logits_) scores = scores.sigmoid();
    const Tensor interval = at::bucketize(scores, thresholds_.to(scores.device()));
    const Tensor slot = interval + (batch.targets > kTrueTarget).to(at::kLong) * intervals_;
    const Tensor each = weights.defined()
                            ? shape_weights(name(), weights, scores).expand(scores.sizes())
                            : at::ones_like(scores);
    return at::zeros({sums()}, scores.options())
        .index_add(0, slot.reshape({-1}), each.reshape({-1}));
  }
  double result(const Tensor& sums) const override {
    const double* negatives = sums.const_data_ptr<double>();
    const double* positives = negatives + intervals_;
    double area = 0, true_positives = 0, false_positives = 0;
    // From the highest threshold, where no output says true, to the lowest. The area of an interval
    // is a trapezoid whose height is the mean of the true positives at its two ends.
    for (int64_t i = intervals_ - 1; i >= 0; --i) {
      area += negatives[i] * (true_positives + positives[i] / 2);
      true_positives += positives[i];
      false_positives += negatives[i];
    }
    const double all = true_positives * false_positives;
    return all == 0 ? kNoExamples : area / all;
  }

 private:
  int64_t intervals_;
  bool from_logits_;
  // All but the first, which is below all outputs, and the last, which is above them.
  Tensor thresholds_;
};

}  // namespace
}  // namespace internal

using internal::ShareOfPositivesRule;

Accuracy::Accuracy(AccuracyOptions options)
    : Metric(std::make_shared<internal::AccuracyRule>(std::move(options))) {}

TopKAccuracy::TopKAccuracy(TopKAccuracyOptions options)
    : Metric(std::make_shared<internal::TopKAccuracyRule>(std::move(options))) {}

Precision::Precision(ThresholdOptions options)
    : Metric(std::make_shared<ShareOfPositivesRule>(
          std::move(options), ShareOfPositivesRule::Counts::kSaidTrue, "precision")) {}

Recall::Recall(ThresholdOptions options)
    : Metric(std::make_shared<ShareOfPositivesRule>(
          std::move(options), ShareOfPositivesRule::Counts::kAreTrue, "recall")) {}

Auc::Auc(AucOptions options) : Metric(std::make_shared<internal::AucRule>(std::move(options))) {}

MeanAbsoluteError::MeanAbsoluteError(std::string name)
    : Metric(std::make_shared<internal::MeanAbsoluteErrorRule>(std::move(name))) {}

Mean::Mean(std::string name, Values values)
    : Metric(std::make_shared<internal::MeanOfRule>(std::move(name), std::move(values))) {}

}  // namespace trireme
