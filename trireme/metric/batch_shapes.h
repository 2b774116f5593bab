#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

// Checks the shapes of a batch that a metric is given. Shapes are known when a function is
// captured, so these checks cost nothing in a step.
namespace trireme::internal {

// Targets and outputs of a batch in shapes that belong together.
struct ShapedBatch {
  at::Tensor targets;
  at::Tensor outputs;
  // Position of the axis of classes in outputs; -1 if outputs have the shape of targets.
  int64_t class_axis = -1;
};

// Returns the tensors with one output for each target. A last axis of size 1 that only one of them
// has is removed. Throws Error, which names the metric, if they have different shapes.
ShapedBatch shape_equal(const std::string& metric, const at::Tensor& targets,
                        const at::Tensor& outputs);
// Returns the tensors with a score for each class in axis 1 of the outputs, as in LibTorch's cross
// entropy. Throws Error, which names the metric, if they have other shapes.
ShapedBatch shape_scores(const std::string& metric, const at::Tensor& targets,
                         const at::Tensor& outputs);
// Returns the one of the above that fits the shapes. Throws Error if neither does.
ShapedBatch shape_any(const std::string& metric, const at::Tensor& targets,
                      const at::Tensor& outputs);

// Returns the weights as float64 in a shape that broadcasts to `values`, whose first axis counts
// examples. Throws Error, which names the metric, unless there is one number for each example.
at::Tensor shape_weights(const std::string& metric, const at::Tensor& weights,
                         const at::Tensor& values);

// Returns the sum of the values, and of their weights: two numbers of float64. `weights` is what
// shape_weights() takes, or undefined for 1 each.
at::Tensor weighted_sums(const std::string& metric, const at::Tensor& values,
                         const at::Tensor& weights);

}  // namespace trireme::internal
