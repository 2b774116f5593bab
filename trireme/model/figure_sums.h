#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/metric/metric.h"
#include "trireme/model/logs.h"

namespace trireme::internal {

// The names of the figures that a train_step of one's own returns, in their order. Set when the
// step is captured.
using StepFigures = std::shared_ptr<std::vector<std::string>>;

// The sums of the results of steps, and the figures that follow from them. The first tensor of a
// result is {steps, examples, sum of the loss over the examples}, float64 or float32. Behind it are
// the sums of each metric, or, for a train_step of one's own, one tensor with the sum of each of
// its figures. Not thread-safe.
class FigureSums {
 public:
  // Number of sums that come before those of metrics.
  enum { kSteps, kExamples, kLoss, kLeading };

  // Makes sums for the loss and for metrics.
  explicit FigureSums(std::vector<Metric> metrics) : metrics_(std::move(metrics)) {}
  // Makes sums for a train_step of one's own.
  explicit FigureSums(StepFigures figures) : own_figures_(std::move(figures)) {}

  // Adds the sums of some steps.
  void add(const std::vector<at::Tensor>& sums);
  // Adds all sums of another object.
  void add(const FigureSums& other) { add(other.sums_); }
  // Forgets all sums.
  void clear() { sums_.clear(); }
  // Returns the number of steps in the sums.
  int64_t steps() const;
  // Returns the number of steps in the results of some steps; 0 if these are empty.
  static int64_t steps_of(const std::vector<at::Tensor>& sums);
  // Sets the figures in `logs`, with a prefix before their names. Does nothing if there are no
  // sums.
  void write(const std::string& prefix, Logs& logs) const;

  // Returns all sums as a text, without loss of precision.
  std::string save() const;
  // Sets the sums to those of a text of save(). Throws Error if it is malformed.
  void restore(const std::string& text);

 private:
  std::vector<Metric> metrics_;
  StepFigures own_figures_;       // null if there is a loss
  std::vector<at::Tensor> sums_;  // empty if no steps were added
};

}  // namespace trireme::internal
