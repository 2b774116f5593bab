#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

// The format of a list of tensors in a call. Every tensor of a message costs some microseconds on
// each side. So small tensors are packed into one block of bytes, and only those of at least
// kLargeTensorBytes are tensors of the message. Both sides know the shapes beforehand and compute
// the place of each tensor:
//
//   tensor 0       a block with the small tensors, each at a multiple of kAlignment
//   tensor 1 ...   the large tensors, in the order of the list
//
// Without small tensors there is no block, and the large ones begin at tensor 0.
namespace trireme::internal {

inline constexpr size_t kLargeTensorBytes = 64 << 10;
inline constexpr size_t kAlignment = 64;

// Dtype and sizes of a tensor.
struct TensorShape {
  c10::ScalarType dtype = c10::kFloat;
  std::vector<int64_t> sizes;

  static TensorShape of(const at::Tensor& tensor) {
    return {tensor.scalar_type(), tensor.sizes().vec()};
  }
  size_t bytes() const;
  bool operator==(const TensorShape&) const = default;
};

// Returns a shape in readable form, as "float32 [3, 4]".
std::string to_string(const TensorShape& shape);

// Computes the place of each tensor of a list in a message. Immutable.
class Packing {
 public:
  explicit Packing(std::vector<TensorShape> shapes);

  const std::vector<TensorShape>& shapes() const { return shapes_; }
  // Returns the size of all tensors, without the gaps of the block.
  size_t bytes() const { return bytes_; }

  // Returns true if tensor 0 of the message is a block of small tensors.
  bool has_block() const { return block_bytes_ > 0; }
  bool is_large(size_t i) const { return shapes_[i].bytes() >= kLargeTensorBytes; }
  // Returns the tensors of a message with a new block for the small tensors. The large tensors are
  // undefined; the caller puts them into their places.
  std::vector<at::Tensor> allocate_block() const;
  // Returns the list of tensors in a message. They share the memory of the message. Fails if the
  // message does not have this list.
  absl::StatusOr<std::vector<at::Tensor>> unpack(const std::vector<at::Tensor>& message) const;
  // Returns the tensors of a message with this list. Small tensors are copied, large ones are not.
  std::vector<at::Tensor> pack(const std::vector<at::Tensor>& list) const;

  // Place of a tensor in a message.
  struct Place {
    size_t tensor;  // index of the message's tensor
    size_t offset;  // offset in bytes into it
  };
  const Place& place(size_t i) const { return places_[i]; }

 private:
  // Allocates the block and clears the gaps in it.
  at::Tensor new_block() const;

  std::vector<TensorShape> shapes_;
  std::vector<Place> places_;
  size_t block_bytes_ = 0;  // size of the block
  size_t bytes_ = 0;
  size_t large_ = 0;  // number of large tensors
};

// Returns the tensors of a message with this list, packed by its own shapes.
std::vector<at::Tensor> pack(const std::vector<at::Tensor>& list);

}  // namespace trireme::internal
