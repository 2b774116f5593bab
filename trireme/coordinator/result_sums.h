#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace trireme::internal {

// Adds up the results of a function that runs several times, tensor by tensor. Not thread-safe.
class ResultSums {
 public:
  ResultSums() = default;
  // Continues with the sums of earlier runs, which stay unchanged.
  ResultSums(std::vector<at::Tensor> sums, uint32_t runs) : sums_(std::move(sums)), runs_(runs) {}

  // Adds the results of a run. Fails if they differ from those of earlier runs in number, shape or
  // dtype. Throws what LibTorch throws.
  absl::Status add(std::vector<at::Tensor> results);
  // Returns the sums; empty before the first run.
  const std::vector<at::Tensor>& get() const { return sums_; }

 private:
  std::vector<at::Tensor> sums_;
  uint32_t runs_ = 0;
  bool owns_sums_ = false;  // True once nothing else uses the tensors in `sums_`.
};

}  // namespace trireme::internal
