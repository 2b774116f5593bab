#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace trireme::internal {

// Says what a metric adds up, and how the figure follows from the sums. Immutable and thread-safe.
class MetricRule {
 public:
  virtual ~MetricRule() = default;

  virtual const std::string& name() const = 0;
  // Returns the number of sums.
  virtual int64_t sums() const = 0;
  // Returns the sums of a batch: sums() numbers of torch::kDouble. Captured: it consists of
  // operators only. `weights` has one number for each example, or is undefined. Throws Error, which
  // names the metric and the shapes, if they do not belong together.
  virtual at::Tensor sums_of(const at::Tensor& targets, const at::Tensor& outputs,
                             const at::Tensor& weights) const = 0;
  // Returns the figure; NaN if there were no examples. `sums` is contiguous, on the CPU.
  virtual double result(const at::Tensor& sums) const = 0;
};

}  // namespace trireme::internal
