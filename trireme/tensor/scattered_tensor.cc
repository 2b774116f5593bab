#include "trireme/tensor/scattered_tensor.h"

#include <cstring>

#include "trireme/tensor/buffer_pool.h"

namespace trireme {

void ScatteredTensor::append(Piece piece, const std::shared_ptr<const void>& owner) {
  pieces_.push_back(piece);
  if (owners_.empty() || owners_.back() != owner) owners_.push_back(owner);
}

void ScatteredTensor::copy_to(void* out) const {
  char* next = static_cast<char*>(out);
  for (const Piece& piece : pieces_) {
    std::memcpy(next, piece.data, piece.size);
    next += piece.size;
  }
}

at::Tensor ScatteredTensor::gather(c10::IntArrayRef sizes, c10::ScalarType dtype) const {
  const at::Tensor tensor = BufferPool::shared().empty(sizes, dtype);
  copy_to(tensor.data_ptr());
  return tensor;
}

}  // namespace trireme
