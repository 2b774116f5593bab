#include "trireme/checkpoint/pieces.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "trireme/base/crc32c.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

auto key_of(const PieceCrc& piece) {
  return std::tie(piece.file, piece.offset, piece.bytes, piece.crc);
}

absl::Status not_covered(const PieceCrc& piece) {
  return make_status(ErrorCode::kInternal,
                     absl::StrCat("the piece of file ", piece.file, " at byte ", piece.offset,
                                  " with ", piece.bytes,
                                  " bytes belongs to a tensor that was not read as a whole, or "
                                  "was read twice"));
}

}  // namespace

std::vector<ReadPiece> pieces_for(const SavedVariable& variable, int slot, int64_t first,
                                  int64_t count) {
  const uint64_t row_bytes = variable.row_bytes();
  std::vector<ReadPiece> pieces;
  for (const SavedShard& shard : variable.shards) {
    const int64_t begin = std::max(first, shard.first);
    const int64_t end = std::min(first + count, shard.first + shard.count);
    if (begin >= end || row_bytes == 0) continue;
    const SavedTensor& tensor = slot < 0 ? shard.contents : shard.slots[static_cast<size_t>(slot)];
    pieces.push_back(
        {.file = tensor.file,
         .offset = tensor.offset + static_cast<uint64_t>(begin - shard.first) * row_bytes,
         .bytes = static_cast<uint64_t>(end - begin) * row_bytes,
         .to = static_cast<uint64_t>(begin - first) * row_bytes,
         .tensor = tensor.name});
  }
  return pieces;
}

absl::Status check_pieces(const Manifest& manifest, std::vector<PieceCrc> pieces) {
  std::erase_if(pieces, [](const PieceCrc& piece) { return piece.bytes == 0; });
  std::sort(pieces.begin(), pieces.end(),
            [](const PieceCrc& a, const PieceCrc& b) { return key_of(a) < key_of(b); });
  pieces.erase(
      std::unique(pieces.begin(), pieces.end(),
                  [](const PieceCrc& a, const PieceCrc& b) { return key_of(a) == key_of(b); }),
      pieces.end());

  auto piece = pieces.begin();
  for (const TensorOfManifest& entry : tensors_of(manifest)) {
    const SavedTensor& tensor = *entry.tensor;
    if (piece == pieces.end()) break;
    if (tensor.bytes == 0 || piece->file != tensor.file ||
        piece->offset >= tensor.offset + tensor.bytes) {
      continue;
    }
    uint32_t crc = 0;
    bool differs = false;
    for (uint64_t at = tensor.offset; at < tensor.offset + tensor.bytes; ++piece) {
      if (piece == pieces.end()) return not_covered(*std::prev(piece));
      if (piece->file != tensor.file || piece->offset != at ||
          piece->bytes > tensor.offset + tensor.bytes - at) {
        return not_covered(*piece);
      }
      crc = crc32c_combine(crc, piece->crc, piece->bytes);
      at += piece->bytes;
      // Two tasks have read the same piece and have seen different bytes.
      const auto next = std::next(piece);
      differs = differs || (next != pieces.end() && next->file == piece->file &&
                            next->offset == piece->offset && next->bytes == piece->bytes);
      if (differs) break;
    }
    if (differs || crc != tensor.crc) {
      return damaged_tensor(manifest.files[static_cast<size_t>(tensor.file)].name, tensor.name);
    }
  }
  return piece == pieces.end() ? absl::OkStatus() : not_covered(*piece);
}

absl::Status damaged_tensor(const std::string& file, const std::string& tensor) {
  return make_status(ErrorCode::kDataLoss,
                     absl::StrCat("tensor '", tensor, "' in file '", file,
                                  "' is damaged: its checksum differs; use another checkpoint"));
}

}  // namespace trireme::internal
