#include "trireme/data/example_element.h"

#include <ATen/ops/zeros.h>

namespace trireme::internal {

std::vector<at::Tensor> zeros(const ElementSpec& spec) {
  std::vector<at::Tensor> element;
  for (const TensorSpec& tensor : spec) element.push_back(at::zeros(tensor.sizes, tensor.dtype));
  return element;
}

double bytes_of(const ElementSpec& spec) {
  double bytes = 0;
  for (const TensorSpec& tensor : spec) {
    double of_tensor = static_cast<double>(c10::elementSize(tensor.dtype));
    for (int64_t size : tensor.sizes) of_tensor *= static_cast<double>(size);
    bytes += of_tensor;
  }
  return bytes;
}

}  // namespace trireme::internal
