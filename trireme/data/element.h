#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

// Dtype and shape of one tensor of an element.
struct TensorSpec {
  c10::ScalarType dtype;       // type of the numbers, as torch::kFloat
  std::vector<int64_t> sizes;  // shape

  // Compares dtype and shape.
  bool operator==(const TensorSpec&) const = default;
};

// Dtypes and shapes of the tensors of an element. An element of a dataset is a list of tensors.
using ElementSpec = std::vector<TensorSpec>;

// Returns the specification of an element.
ElementSpec spec_of(const std::vector<at::Tensor>& element);
// Returns a specification in readable form, as "(float32[32, 4], int64[32])".
std::string to_string(const ElementSpec& spec);

}  // namespace trireme
