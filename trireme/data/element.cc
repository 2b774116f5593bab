#include "trireme/data/element.h"

#include <ATen/ops/zeros.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/tensor/dtype.h"

namespace trireme {

ElementSpec spec_of(const std::vector<at::Tensor>& element) {
  ElementSpec spec;
  for (const at::Tensor& tensor : element) {
    spec.push_back({tensor.scalar_type(), tensor.sizes().vec()});
  }
  return spec;
}

std::string to_string(const ElementSpec& spec) {
  const auto write = [](std::string* out, const TensorSpec& tensor) {
    absl::StrAppend(out, dtype_name(tensor.dtype), "[", absl::StrJoin(tensor.sizes, ", "), "]");
  };
  return absl::StrCat("(", absl::StrJoin(spec, ", ", write), ")");
}

namespace internal {

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

}  // namespace internal
}  // namespace trireme
