#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

// An element of a dataset is a list of tensors; a specification tells what they look like.
namespace trireme {

struct TensorSpec {
  c10::ScalarType dtype;
  std::vector<int64_t> sizes;

  bool operator==(const TensorSpec&) const = default;
};

using ElementSpec = std::vector<TensorSpec>;

ElementSpec spec_of(const std::vector<at::Tensor>& element);
// "(float32[32, 4], int64[32])"
std::string to_string(const ElementSpec& spec);

namespace internal {

std::vector<at::Tensor> zeros(const ElementSpec& spec);
// As a floating-point number: sizes that anybody may have sent overflow others.
double bytes_of(const ElementSpec& spec);

}  // namespace internal
}  // namespace trireme
