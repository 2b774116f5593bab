#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/status.h"

namespace trireme::internal {

// Adds up the results of a function that runs several times, tensor by tensor. Not thread-safe.
class ResultSums {
 public:
  // Adds the results of a run. Fails if they differ from those of earlier runs in number, shape or
  // dtype. Throws what LibTorch throws.
  absl::Status add(std::vector<at::Tensor> results);
  // Returns the sums; empty before the first run.
  const std::vector<at::Tensor>& get() const { return sums_; }

 private:
  std::vector<at::Tensor> sums_;
  int runs_ = 0;
};

}  // namespace trireme::internal
