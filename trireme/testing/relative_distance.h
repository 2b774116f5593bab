#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

namespace trireme {

// Returns ||a - b|| / ||b||, by which tests compare tensors that should be nearly equal. Returns 0
// if both are 0.
inline double relative_distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor expected = b.to(at::kDouble);
  const double difference = (a.to(at::kDouble) - expected).norm().item<double>();
  return difference == 0 ? 0 : difference / std::max(expected.norm().item<double>(), 1e-30);
}

}  // namespace trireme
