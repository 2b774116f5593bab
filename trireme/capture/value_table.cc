#include "trireme/capture/value_table.h"

#include <ATen/SparseTensorImpl.h>

namespace trireme::internal {
namespace {

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

}  // namespace

Memory* ValueTable::find(const at::Tensor& tensor) {
  const auto found = places_.find(storage_of(tensor));
  return found == places_.end() ? nullptr : found->second.memory;
}

Memory& ValueTable::add(const at::Tensor& tensor, MemoryOrigin origin, size_t index) {
  Memory& memory = memories_.emplace_back();
  memory.origin = origin;
  memory.index = index;
  alias(tensor, memory);
  return memory;
}

void ValueTable::alias(const at::Tensor& tensor, Memory& memory) {
  memory.storage = tensor.storage().getWeakStorageImpl();
  // Geometries of a result count from the start of its storage. A tensor from outside may be part
  // of a larger storage, while its scratch copy starts at offset 0. Both must have the same
  // geometry, so geometries count from the tensor.
  const bool whole = memory.origin == MemoryOrigin::kResult;
  memory.base =
      whole ? 0 : tensor.storage_offset() * static_cast<int64_t>(tensor.dtype().itemsize());
  places_.insert_or_assign(storage_of(tensor), Place{&memory, memory.base, *memory.storage});
}

Geometry ValueTable::geometry_of(const at::Tensor& tensor, int64_t base) {
  return {tensor.scalar_type(),
          tensor.storage_offset() * static_cast<int64_t>(tensor.dtype().itemsize()) - base,
          tensor.sizes().vec(),
          tensor.strides().vec(),
          tensor.is_conj(),
          tensor.is_neg(),
          tensor.unsafeGetTensorImpl()->is_wrapped_number()};
}

Geometry ValueTable::geometry_of(const at::Tensor& tensor) {
  return geometry_of(tensor, places_.at(storage_of(tensor)).base);
}

std::optional<uint32_t> ValueTable::lookup(const Memory& memory, const Geometry& geometry) {
  for (const auto& [known, value] : memory.values) {
    if (known == geometry) return value;
  }
  return std::nullopt;
}

ValueTable::Sparse ValueTable::sparse_of(const at::Tensor& tensor) {
  const auto* impl = static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
  return {storage_of(impl->indices()), storage_of(impl->values()), tensor.sizes().vec(),
          impl->coalesced()};
}

std::optional<uint32_t> ValueTable::find_sparse(const at::Tensor& tensor) const {
  const Sparse wanted = sparse_of(tensor);
  for (const auto& [sparse, value] : sparse_) {
    if (sparse == wanted) return value;
  }
  return std::nullopt;
}

void ValueTable::set_sparse(const at::Tensor& tensor, uint32_t value) {
  const auto* impl = static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
  held_.push_back(impl->indices().storage().getWeakStorageImpl());
  held_.push_back(impl->values().storage().getWeakStorageImpl());
  const Sparse sparse = sparse_of(tensor);
  for (auto& [known, known_value] : sparse_) {
    if (known == sparse) {
      known_value = value;
      return;
    }
  }
  sparse_.emplace_back(sparse, value);
}

}  // namespace trireme::internal
