#include "trireme/data/example_element.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace trireme::internal {

std::vector<at::Tensor> zeros(const ElementSpec& spec) {
  std::vector<at::Tensor> element;
  for (const TensorSpec& tensor : spec) {
    std::vector<int64_t> sizes = tensor.sizes;
    for (int64_t& size : sizes) size = size < 0 ? 1 : size;
    element.push_back(at::zeros(sizes, tensor.dtype));
  }
  return element;
}

double bytes_of(const ElementSpec& spec) {
  double bytes = 0;
  for (const TensorSpec& tensor : spec) {
    double of_tensor = static_cast<double>(c10::elementSize(tensor.dtype));
    for (int64_t size : tensor.sizes) {
      if (size >= 0) of_tensor *= static_cast<double>(size);
    }
    bytes += of_tensor;
  }
  return bytes;
}

bool has_fixed_sizes(const ElementSpec& spec) {
  return std::ranges::all_of(spec, [](const TensorSpec& tensor) {
    return std::ranges::all_of(tensor.sizes, [](int64_t size) { return size >= 0; });
  });
}

}  // namespace trireme::internal
