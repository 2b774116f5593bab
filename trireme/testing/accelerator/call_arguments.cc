#include "trireme/testing/accelerator/call_arguments.h"

#include <ATen/core/jit_type.h>
#include <ATen/ops/clone.h>

#include <algorithm>
#include <memory>

#include "trireme/testing/accelerator/device_memory.h"

namespace trireme::internal {

bool takes_generator(const c10::Argument& argument) {
  c10::TypePtr type = argument.type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == c10::TypeKind::GeneratorType;
}

at::Tensor copy_on_host(const at::Tensor& tensor) {
  at::Tensor copy = tensor.clone();
  const bool is_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  if (is_number) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copy;
}

at::Tensor DeviceViews::view_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return tensor;
  const c10::Storage& storage = tensor.storage();
  auto known = std::find_if(storages_.begin(), storages_.end(), [&](const auto& pair) {
    return pair.first == storage.unsafeGetStorageImpl();
  });
  if (known == storages_.end()) {
    storages_.emplace_back(storage.unsafeGetStorageImpl(), storage_as_cpu(storage));
    known = storages_.end() - 1;
    if (auto block = block_of(storage)) blocks_.push_back(std::move(block));
  }
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(known->second), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  c10::TensorImpl& impl = *view.unsafeGetTensorImpl();
  impl.set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl.set_wrapped_number(true);
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  return view;
}

}  // namespace trireme::internal
