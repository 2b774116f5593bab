#include "trireme/function/structure.h"

#include <c10/util/DimVector.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trireme::internal {
namespace {

// Returns the strides of a tensor of these sizes that was just made. is_contiguous() ignores the
// strides of dimensions of size 1, but they decide which memory format an operator chooses.
c10::DimVector default_strides(const at::Tensor& tensor) {
  c10::DimVector strides(tensor.dim());
  int64_t next = 1;
  for (int64_t i = tensor.dim(); i-- > 0;) {
    strides[i] = next;
    next *= std::max<int64_t>(tensor.size(i), 1);
  }
  return strides;
}

}  // namespace

void append_tensor_signature(const at::Tensor& tensor, std::string& signature) {
  if (!tensor.defined()) {
    signature += "undefined";
    return;
  }
  absl::StrAppend(&signature, c10::toString(tensor.scalar_type()), "[",
                  absl::StrJoin(tensor.sizes(), ", "), "]");
  if (!tensor.is_sparse() && tensor.strides() != c10::IntArrayRef(default_strides(tensor))) {
    absl::StrAppend(&signature, " strides [", absl::StrJoin(tensor.strides(), ", "), "]");
  }
  if (tensor.is_sparse()) signature += " sparse";
  if (!tensor.device().is_cpu()) absl::StrAppend(&signature, " on ", tensor.device().str());
  if (tensor.requires_grad()) signature += " needs gradients";
}

}  // namespace trireme::internal
