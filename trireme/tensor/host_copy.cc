#include "trireme/tensor/host_copy.h"

#include <ATen/ops/empty_like.h>

namespace trireme {

at::Tensor copy_to_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  at::Tensor copy = at::empty_like(tensor, tensor.options().device(c10::kCPU).pinned_memory(true));
  copy.copy_(tensor);
  return copy;
}

}  // namespace trireme
