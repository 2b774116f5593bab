#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/files.h"
#include "trireme/data/block.h"

namespace trireme::internal {

// Whole records of a file as they are in the file, one after the other.
struct RawRecords {
  std::string_view bytes;
  uint64_t offset = 0;      // place of the first byte in the file
  uint64_t first_line = 0;  // number of the first line, counted from 1; 0 for files without lines
  int64_t records = 0;      // number of records, as split() has counted them
};

// A format of files that are a sequence of records, such as CSV. Files are cut between records into
// pieces that are decoded in parallel. Immutable. Thread-safe.
class RecordFormat {
 public:
  virtual ~RecordFormat() = default;

  // Records that are whole, counted from the beginning of some bytes.
  struct Whole {
    size_t bytes = 0;
    int64_t records = 0;
    int64_t lines = 0;  // line ends in these bytes
    // If not empty, the record that follows is not valid: what is wrong, and what was expected.
    // Where it ends is not known. In files of lines, a record begins after its first line.
    std::string fault;
  };
  // Returns false for files that do not consist of lines.
  virtual bool has_lines() const { return true; }
  // Reads what precedes the records, such as a line of names, and checks it. Returns its length,
  // with no records. Errors do not name the file; the caller adds its name.
  virtual absl::StatusOr<Whole> read_head(InputFile& file) const = 0;
  // Counts the records that are whole, at most `most`. The bytes begin with a record. `is_end` is
  // true if the file ends with the bytes; then what is left is a record too, or a fault.
  virtual Whole split(std::string_view bytes, bool is_end, int64_t most) const = 0;
  // Decodes records. A record that is not valid is passed to `bad`, with the offset of its first
  // byte in raw.bytes, its line (0 if there are none) and what is wrong with it: returns the error
  // that `bad` returns, and leaves the record out if `bad` returns OK.
  using BadRecord =
      std::function<absl::Status(size_t offset, uint64_t line, const std::string& what)>;
  virtual absl::StatusOr<BlockPtr> decode(const RawRecords& raw, const BadRecord& bad) const = 0;
};

}  // namespace trireme::internal
