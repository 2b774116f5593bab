#include "trireme/function/structure.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trireme::internal {

void append_tensor_signature(const at::Tensor& tensor, std::string& signature) {
  if (!tensor.defined()) {
    signature += "undefined";
    return;
  }
  absl::StrAppend(&signature, c10::toString(tensor.scalar_type()), "[",
                  absl::StrJoin(tensor.sizes(), ", "), "]");
  if (!tensor.is_sparse() && !tensor.is_contiguous()) {
    absl::StrAppend(&signature, " strides [", absl::StrJoin(tensor.strides(), ", "), "]");
  }
  if (tensor.is_sparse()) signature += " sparse";
  if (!tensor.device().is_cpu()) absl::StrAppend(&signature, " on ", tensor.device().str());
  if (tensor.requires_grad()) signature += " needs gradients";
}

}  // namespace trireme::internal
