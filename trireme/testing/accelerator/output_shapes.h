#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <memory>
#include <vector>

// Which tensors an operator returns, known to the host before the operator has run.
namespace trireme::internal {

// The shape of one returned tensor.
struct OutputShape {
  explicit OutputShape(const at::Tensor& tensor);

  bool defined = false;  // false for gradients that were not asked for
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

// The shapes of the tensors of each value that an operator returns.
using OutputShapes = std::vector<std::vector<OutputShape>>;

// Returns the shapes that the call returns, or null if they depend on values. The first call with
// arguments of these shapes runs the operator on the host, on tensors of ones; later calls find the
// answer in a cache. Thread-safe.
std::shared_ptr<const OutputShapes> output_shapes(const c10::OperatorHandle& op,
                                                  const torch::jit::Stack& arguments);

}  // namespace trireme::internal
