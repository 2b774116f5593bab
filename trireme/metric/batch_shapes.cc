#include "trireme/metric/batch_shapes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/tensor/format_shape.h"

namespace trireme::internal {
namespace {

using at::Tensor;

[[noreturn]] void throw_shapes(const std::string& metric, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, why, {"", absl::StrCat("metric '", metric, "'")});
}

std::string shapes_of(const Tensor& targets, const Tensor& outputs) {
  return absl::StrCat("outputs of shape ", format_shape(outputs.sizes()),
                      " do not belong to targets of shape ", format_shape(targets.sizes()));
}

void check_batch(const std::string& metric, const Tensor& targets, const Tensor& outputs) {
  if (!targets.defined() || !outputs.defined()) {
    throw_shapes(metric, absl::StrCat("the ", targets.defined() ? "outputs" : "targets",
                                      " are an undefined tensor; pass the tensors of a batch"));
  }
  if (targets.dim() == 0 || outputs.dim() == 0) {
    throw_shapes(metric, absl::StrCat(shapes_of(targets, outputs),
                                      ": the first axis of both counts examples; give a single "
                                      "example one with unsqueeze(0)"));
  }
}

// Returns the tensor without its last axis if that has the size 1 and is not the axis of examples.
Tensor without_last(const Tensor& tensor) {
  return tensor.dim() > 1 && tensor.size(-1) == 1 ? tensor.squeeze(-1) : tensor;
}

bool try_equal(const Tensor& targets, const Tensor& outputs, ShapedBatch& batch) {
  batch = {targets, outputs};
  // Without this, LibTorch would compare each output with all targets.
  if (targets.dim() + 1 == outputs.dim()) batch.outputs = without_last(outputs);
  if (outputs.dim() + 1 == targets.dim()) batch.targets = without_last(targets);
  return batch.targets.sizes() == batch.outputs.sizes();
}

bool try_scores(const Tensor& targets, const Tensor& outputs, ShapedBatch& batch) {
  batch = {targets, outputs, 1};
  if (targets.dim() == outputs.dim()) batch.targets = without_last(targets);
  if (outputs.dim() != batch.targets.dim() + 1 || outputs.size(1) == 0) return false;
  std::vector<int64_t> sizes = outputs.sizes().vec();
  sizes.erase(sizes.begin() + 1);
  return batch.targets.sizes() == c10::IntArrayRef(sizes);
}

constexpr char kNeedEqual[] = "one output for each target, in the same shape";
constexpr char kNeedScores[] =
    "targets [examples] with outputs [examples, classes], where further axes follow in both";
constexpr char kRemedy[] =
    "Check the last layer of the net, and give the axes this order with transpose() or reshape()";

}  // namespace

ShapedBatch shape_equal(const std::string& metric, const Tensor& targets, const Tensor& outputs) {
  check_batch(metric, targets, outputs);
  ShapedBatch batch;
  if (try_equal(targets, outputs, batch)) return batch;
  throw_shapes(metric,
               absl::StrCat(shapes_of(targets, outputs), ": it needs ", kNeedEqual, ". ", kRemedy));
}

ShapedBatch shape_scores(const std::string& metric, const Tensor& targets, const Tensor& outputs) {
  check_batch(metric, targets, outputs);
  ShapedBatch batch;
  if (try_scores(targets, outputs, batch)) return batch;
  throw_shapes(
      metric, absl::StrCat(shapes_of(targets, outputs), ": it needs ", kNeedScores, ". ", kRemedy));
}

ShapedBatch shape_any(const std::string& metric, const Tensor& targets, const Tensor& outputs) {
  check_batch(metric, targets, outputs);
  ShapedBatch batch;
  if (try_equal(targets, outputs, batch) || try_scores(targets, outputs, batch)) return batch;
  throw_shapes(metric, absl::StrCat(shapes_of(targets, outputs), ": it needs ", kNeedEqual, ", or ",
                                    kNeedScores, ". ", kRemedy));
}

Tensor shape_weights(const std::string& metric, const Tensor& weights, const Tensor& values) {
  const int64_t examples = values.size(0);
  const bool is_column = weights.dim() == 2 && weights.size(1) == 1;
  if ((weights.dim() != 1 && !is_column) || weights.size(0) != examples) {
    throw_shapes(metric,
                 absl::StrCat("weights of shape ", format_shape(weights.sizes()),
                              " do not belong to a batch of ", examples,
                              " examples: it needs one number for each example. Give it weights of "
                              "shape [",
                              examples, "]"));
  }
  std::vector<int64_t> shape(values.dim(), 1);
  shape[0] = examples;
  return weights.detach().to(at::kDouble).reshape(shape);
}

Tensor weighted_sums(const std::string& metric, const Tensor& values, const Tensor& weights) {
  if (!weights.defined()) {
    const Tensor sum = values.sum(at::kDouble);
    return at::stack({sum, at::full({}, static_cast<double>(values.numel()), sum.options())});
  }
  const Tensor factors = shape_weights(metric, weights, values);
  // The weight of an example counts for each of its values.
  const int64_t each = values.size(0) == 0 ? 0 : values.numel() / values.size(0);
  return at::stack({(values * factors).sum(at::kDouble), factors.sum() * each});
}

}  // namespace trireme::internal
