#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace trireme {

// The bytes of a tensor in the pieces in which they arrived. For a receiver that reads them once,
// in order, and so needs no contiguous copy. A piece may end within an element. Not thread-safe.
class ScatteredTensor {
 public:
  struct Piece {
    const uint8_t* data;
    size_t size;
  };

  // Appends a piece whose memory belongs to `owner`. Keeps the owner alive.
  void append(Piece piece, const std::shared_ptr<const void>& owner);

  const std::vector<Piece>& pieces() const { return pieces_; }
  // Copies all bytes to `out`.
  void copy_to(void* out) const;
  // Returns a contiguous copy of the given shape in new memory. Throws c10::Error if there is not
  // enough memory.
  at::Tensor gather(c10::IntArrayRef sizes, c10::ScalarType dtype) const;

 private:
  std::vector<Piece> pieces_;
  std::vector<std::shared_ptr<const void>> owners_;
};

}  // namespace trireme
