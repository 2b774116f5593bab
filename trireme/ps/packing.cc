#include "trireme/ps/packing.h"

#include <c10/core/StorageImpl.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/tensor/buffer_pool.h"
#include "trireme/tensor/dtype.h"
#include "trireme/tensor/format_shape.h"

namespace trireme::internal {
namespace {

// Returns a tensor in the memory of a block. Made by hand: LibTorch's view operators cost more than
// copying the few bytes of a small variable.
at::Tensor view_of(const at::Tensor& block, size_t offset, const TensorShape& shape) {
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(block.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(shape.dtype));
  view.unsafeGetTensorImpl()->set_storage_offset(offset / c10::elementSize(shape.dtype));
  view.unsafeGetTensorImpl()->set_sizes_contiguous(shape.sizes);
  return view;
}

absl::Status malformed(const std::string& what) {
  return make_status(ErrorCode::kInvalidArgument, absl::StrCat("malformed variables: ", what));
}

}  // namespace

size_t TensorShape::bytes() const {
  size_t bytes = c10::elementSize(dtype);
  for (int64_t size : sizes) bytes *= size;
  return bytes;
}

std::string to_string(const TensorShape& shape) {
  return absl::StrCat(dtype_name(shape.dtype), " ", format_shape(shape.sizes));
}

Packing::Packing(std::vector<TensorShape> shapes) : shapes_(std::move(shapes)) {
  places_.reserve(shapes_.size());
  for (const TensorShape& shape : shapes_) {
    const size_t bytes = shape.bytes();
    bytes_ += bytes;
    if (bytes >= kLargeTensorBytes) {
      places_.push_back({++large_, 0});
    } else {
      places_.push_back({0, block_bytes_});
      block_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
  }
  if (block_bytes_ > 0) return;
  // There is no block, so the large tensors move up by one.
  for (Place& place : places_) {
    if (place.tensor > 0) --place.tensor;
  }
}

at::Tensor Packing::new_block() const {
  at::Tensor block = BufferPool::shared().empty({static_cast<int64_t>(block_bytes_)}, c10::kByte);
  // The gaps between tensors are sent as well. Clear them, so that they do not leak what the memory
  // held before.
  char* start = static_cast<char*>(block.data_ptr());
  for (size_t i = 0; i < shapes_.size(); ++i) {
    const size_t bytes = shapes_[i].bytes();
    if (bytes >= kLargeTensorBytes || bytes % kAlignment == 0) continue;
    std::memset(start + places_[i].offset + bytes, 0, kAlignment - bytes % kAlignment);
  }
  return block;
}

std::vector<at::Tensor> Packing::allocate_block() const {
  std::vector<at::Tensor> message(large_ + (block_bytes_ > 0 ? 1 : 0));
  if (block_bytes_ > 0) message[0] = new_block();
  return message;
}

absl::StatusOr<std::vector<at::Tensor>> Packing::unpack(
    const std::vector<at::Tensor>& message) const {
  const size_t expected = large_ + (block_bytes_ > 0 ? 1 : 0);
  if (message.size() != expected) {
    return malformed(absl::StrCat("expected ", expected, " tensors, got ", message.size()));
  }
  if (block_bytes_ > 0 &&
      (message[0].scalar_type() != c10::kByte || message[0].nbytes() != block_bytes_)) {
    return malformed(
        absl::StrCat("expected a block of ", block_bytes_, " bytes, got ", message[0].nbytes()));
  }
  std::vector<at::Tensor> list;
  list.reserve(shapes_.size());
  for (size_t i = 0; i < shapes_.size(); ++i) {
    const at::Tensor& source = message.empty() ? at::Tensor() : message[places_[i].tensor];
    if (shapes_[i].bytes() >= kLargeTensorBytes) {
      if (TensorShape::of(source) != shapes_[i]) {
        return malformed(absl::StrCat("expected a tensor of ", to_string(shapes_[i]), ", got ",
                                      to_string(TensorShape::of(source))));
      }
      list.push_back(source);
    } else if (source.defined() && source.scalar_type() == c10::kByte && block_bytes_ > 0) {
      list.push_back(view_of(source, places_[i].offset, shapes_[i]));
    } else {  // without a block, all small tensors are empty
      list.push_back(BufferPool::shared().empty(shapes_[i].sizes, shapes_[i].dtype));
    }
  }
  return list;
}

std::vector<at::Tensor> Packing::pack(const std::vector<at::Tensor>& list) const {
  std::vector<at::Tensor> message = allocate_block();
  char* block = block_bytes_ > 0 ? static_cast<char*>(message[0].data_ptr()) : nullptr;
  for (size_t i = 0; i < list.size(); ++i) {
    if (is_large(i)) {
      message[places_[i].tensor] = list[i];
    } else if (block != nullptr) {
      std::memcpy(block + places_[i].offset, list[i].const_data_ptr(), list[i].nbytes());
    }
  }
  return message;
}

std::vector<at::Tensor> pack(const std::vector<at::Tensor>& list) {
  std::vector<TensorShape> shapes;
  for (const at::Tensor& tensor : list) shapes.push_back(TensorShape::of(tensor));
  return Packing(std::move(shapes)).pack(list);
}

}  // namespace trireme::internal
