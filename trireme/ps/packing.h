#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

// How a list of tensors travels with a call. A tensor of its own costs some microseconds on each
// side, so small ones lie together in one block of bytes, and only those from kOwnTensor bytes on
// are tensors of the message. Both sides know the shapes beforehand and compute where each one is:
//
//   tensor 0       a block of bytes, if there are small ones, each at a multiple of kAlignment
//   tensor 1 ...   the large ones, in turn
namespace trireme::internal {

inline constexpr size_t kOwnTensor = 64 << 10;
inline constexpr size_t kAlignment = 64;

struct TensorShape {
  c10::ScalarType dtype = c10::kFloat;
  std::vector<int64_t> sizes;

  static TensorShape of(const at::Tensor& tensor) {
    return {tensor.scalar_type(), tensor.sizes().vec()};
  }
  size_t bytes() const;
  bool operator==(const TensorShape&) const = default;
};

// "float32 [3, 4]"
std::string to_string(const TensorShape& shape);

// Where each tensor of a list is.
class Packing {
 public:
  explicit Packing(std::vector<TensorShape> shapes);

  const std::vector<TensorShape>& shapes() const { return shapes_; }
  size_t bytes() const { return bytes_; }  // of all

  // True if tensor 0 is a block of small ones.
  bool has_block() const { return block_bytes_ > 0; }
  bool is_large(size_t i) const { return shapes_[i].bytes() >= kOwnTensor; }
  // The tensors of a message for this list: new memory for the small ones, and the large ones
  // undefined, to be put into their places.
  std::vector<at::Tensor> allocate_block() const;
  // The list as it lies in the tensors of a message, which it shares. An error when these are not
  // such a list.
  absl::StatusOr<std::vector<at::Tensor>> unpack(const std::vector<at::Tensor>& message) const;
  // The tensors of a message for this list: small ones copied, large ones as they are.
  std::vector<at::Tensor> pack(const std::vector<at::Tensor>& list) const;

  // Where the i-th is: a tensor of the message, and an offset in bytes into it.
  struct Place {
    size_t tensor;
    size_t offset;
  };
  const Place& place(size_t i) const { return places_[i]; }

 private:
  at::Tensor new_block() const;

  std::vector<TensorShape> shapes_;
  std::vector<Place> places_;
  size_t block_bytes_ = 0;
  size_t bytes_ = 0;
  size_t large_ = 0;
};

// The tensors of a message for this list, packed by the shapes that it has.
std::vector<at::Tensor> pack(const std::vector<at::Tensor>& list);

}  // namespace trireme::internal
