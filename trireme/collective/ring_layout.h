#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

namespace trireme::internal {

inline int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Segments begin at multiples of this number of elements, for the sake of vector instructions.
inline constexpr int64_t kSegmentAlignment = 64;

// The cut of a tensor of one dimension into segments and pieces. All segments have the same number
// of pieces; those beyond the end of the tensor are empty.
struct RingLayout {
  // Cuts a tensor into segments of `stride` elements, of which the last may be shorter, and these
  // into pieces of at most `piece_bytes`. A segment has several pieces, so that steps overlap,
  // unless these were smaller than `smallest_piece_bytes`.
  RingLayout(const at::Tensor& tensor, int64_t stride, int64_t piece_bytes,
             int64_t smallest_piece_bytes)
      : stride(stride) {
    constexpr int64_t kPiecesToOverlap = 4;
    const int64_t bytes = stride * static_cast<int64_t>(tensor.element_size());
    const int64_t wanted = std::min(kPiecesToOverlap, bytes / smallest_piece_bytes);
    pieces = std::max({divide_up(bytes, piece_bytes), wanted, int64_t{1}});
    piece_stride = divide_up(stride, pieces);
  }

  // Returns a piece of a segment of a tensor.
  at::Tensor piece(const at::Tensor& tensor, int64_t segment, int64_t piece) const {
    const int64_t first = segment * stride;
    const int64_t begin = std::min(first + piece * piece_stride, tensor.numel());
    const int64_t end =
        std::min({first + (piece + 1) * piece_stride, first + stride, tensor.numel()});
    return tensor.narrow(0, begin, std::max(end - begin, int64_t{0}));
  }

  int64_t stride;        // elements of a segment
  int64_t pieces;        // number of pieces of a segment
  int64_t piece_stride;  // elements of a piece
};

}  // namespace trireme::internal
