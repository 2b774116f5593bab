#include "trireme/capture/memory_lock.h"

#include <ATen/ops/from_blob.h>

namespace trireme::internal {

void lock_memory(const at::Tensor& tensor, const std::string& message) {
  if (tensor.has_storage()) lock_memory(*tensor.storage().unsafeGetStorageImpl(), message);
}

void unlock_memory(const at::Tensor& tensor) {
  if (tensor.has_storage()) unlock_memory(*tensor.storage().unsafeGetStorageImpl());
}

void lock_memory(c10::StorageImpl& storage, const std::string& message) {
  // Releases nothing, despite its name.
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(message);
}

void unlock_memory(c10::StorageImpl& storage) {
  storage.clear_data_ptr_access_error_msg_();
}

const void* locked_data(const c10::StorageImpl& storage) {
  // The function is not const only because it returns a reference that can be written to.
  return const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get();
}

at::Tensor readable_alias(const at::Tensor& tensor) {
  const c10::Storage storage = tensor.storage();
  const auto* bytes = static_cast<const char*>(locked_data(*storage.unsafeGetStorageImpl())) +
                      tensor.storage_offset() * static_cast<int64_t>(tensor.dtype().itemsize());
  return at::from_blob(
      const_cast<char*>(bytes), tensor.sizes(), tensor.strides(), [storage](void*) {},
      tensor.options().requires_grad(false));
}

}  // namespace trireme::internal
