#include "trireme/data/element.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/tensor/dtype.h"
#include "trireme/tensor/format_shape.h"

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
    absl::StrAppend(out, dtype_name(tensor.dtype), format_shape(tensor.sizes));
  };
  return absl::StrCat("(", absl::StrJoin(spec, ", ", write), ")");
}

}  // namespace trireme
