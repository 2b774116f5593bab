#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace trireme {

// The bytes of a tensor in the pieces in which they arrived, for a receiver that goes through them
// once and can do without a copy that is contiguous. A piece may end within an element.
class ScatteredTensor {
 public:
  struct Piece {
    const uint8_t* data;
    size_t size;
  };

  // The memory is `owner`'s, which is held with the tensor.
  void append(Piece piece, const std::shared_ptr<const void>& owner);

  const std::vector<Piece>& pieces() const { return pieces_; }
  // Copies all of it to `out`.
  void copy_to(void* out) const;
  // A copy in new memory, of this shape. Throws c10::Error when there is no memory.
  at::Tensor gather(c10::IntArrayRef sizes, c10::ScalarType dtype) const;

 private:
  std::vector<Piece> pieces_;
  std::vector<std::shared_ptr<const void>> owners_;
};

}  // namespace trireme
