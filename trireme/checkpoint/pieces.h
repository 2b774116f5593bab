#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trireme/checkpoint/saved_state.h"

// The plan of a restore: which bytes of which files fill which rows, so that another number of
// servers can read them in parallel. A tensor that several tasks have read in pieces is checked by
// combining the checksums of the pieces.
namespace trireme::internal {

struct ReadPiece {
  int file = 0;         // Index into Manifest::files.
  uint64_t offset = 0;  // Offset from the begin of the file.
  uint64_t bytes = 0;
  uint64_t to = 0;     // Byte offset in the target.
  std::string tensor;  // Name inside the file.

  bool operator==(const ReadPiece&) const = default;
};

// The checksum of a piece that was read.
struct PieceCrc {
  int file = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t crc = 0;
};

// Returns the pieces that fill the rows [first, first + count) of a variable, one per saved shard
// that has some of them. `slot` is the index of a slot, or -1 for the contents. The variable must
// be from a manifest that was parsed, and have these rows. Pieces without bytes are left out.
std::vector<ReadPiece> pieces_for(const SavedVariable& variable, int slot, int64_t first,
                                  int64_t count);

// Compares the checksums of pieces with those of their tensors. Every tensor that a piece belongs
// to must be covered whole; pieces that were read twice are allowed if they are equal. Returns
// DATA_LOSS naming the file and the tensor if a checksum differs, and INTERNAL if the pieces do not
// cover their tensors.
absl::Status check_pieces(const Manifest& manifest, std::vector<PieceCrc> pieces);

// Returns the error for a tensor whose checksum differs, in the file with this path or name.
absl::Status damaged_tensor(const std::string& file, const std::string& tensor);

}  // namespace trireme::internal
