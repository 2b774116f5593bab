#include "trireme/ps/partitioner.h"

#include <algorithm>
#include <string>

#include "trireme/base/error.h"

namespace trireme {
namespace {

// Returns the number of rows that can be divided, at least 1: scalars and empty tensors make one
// shard.
int64_t rows_of(c10::IntArrayRef sizes) {
  return sizes.empty() ? 1 : std::max<int64_t>(sizes[0], 1);
}

int64_t bytes_of(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  int64_t bytes = c10::elementSize(dtype);
  for (int64_t size : sizes) bytes *= size;
  return bytes;
}

int64_t check_at_least_one(const char* what, int64_t value) {
  if (value >= 1) return value;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(what) + " is " + std::to_string(value) + "; it must be at least 1");
}

}  // namespace

Partitioner FixedPartitioner(int64_t shards) {
  check_at_least_one("the number of shards", shards);
  return [=](c10::IntArrayRef sizes, c10::ScalarType) { return std::min(shards, rows_of(sizes)); };
}

Partitioner MinSizePartitioner(int64_t min_bytes, int64_t max_shards, MinSizeOptions options) {
  check_at_least_one("min_bytes", min_bytes);
  check_at_least_one("max_shards", max_shards);
  return [=](c10::IntArrayRef sizes, c10::ScalarType dtype) {
    const int64_t bytes = bytes_of(sizes, dtype);
    const int64_t fit =
        options.round_up_as_tensorflow ? (bytes + min_bytes - 1) / min_bytes : bytes / min_bytes;
    return std::max<int64_t>(1, std::min({rows_of(sizes), max_shards, fit}));
  };
}

Partitioner MaxSizePartitioner(int64_t max_bytes, int64_t max_shards) {
  check_at_least_one("max_bytes", max_bytes);
  if (max_shards != 0) check_at_least_one("max_shards", max_shards);
  return [=](c10::IntArrayRef sizes, c10::ScalarType dtype) {
    const int64_t dim = rows_of(sizes);
    const int64_t bytes_per_row = std::max<int64_t>(1, bytes_of(sizes, dtype) / dim);
    // A row is never cut, so a shard has at least one.
    const int64_t rows = std::max<int64_t>(1, max_bytes / bytes_per_row);
    const int64_t shards = (dim + rows - 1) / rows;
    return max_shards == 0 ? shards : std::min(shards, max_shards);
  };
}

std::vector<RowRange> split_rows(int64_t rows, int64_t shards) {
  std::vector<RowRange> ranges;
  int64_t first = 0;
  for (int64_t i = 0; i < shards; ++i) {
    const int64_t count = rows / shards + (i < rows % shards ? 1 : 0);
    ranges.push_back({first, count});
    first += count;
  }
  return ranges;
}

int64_t shard_of_row(int64_t row, int64_t rows, int64_t shards) {
  // The first `extra` shards have base + 1 rows each, the others base.
  const int64_t base = rows / shards, extra = rows % shards;
  const int64_t in_larger = (base + 1) * extra;
  return row < in_larger ? row / (base + 1) : extra + (row - in_larger) / base;
}

}  // namespace trireme
