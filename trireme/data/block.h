#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

namespace trireme::internal {

// One column of a block. If all rows have the same shape, `values` has one row for each of them.
// Otherwise row i is the part of `values` from offsets[i] to offsets[i + 1] along axis 0.
struct BlockColumn {
  at::Tensor values;
  std::vector<int64_t> offsets;  // empty, or one more than there are rows
};

// Consecutive records of a file, decoded column by column. The columns are those of the dataset's
// source, in the same order, with its dtypes and shapes, in contiguous memory.
struct Block {
  std::vector<BlockColumn> columns;
  int64_t rows = 0;
};

using BlockPtr = std::shared_ptr<const Block>;

// A record that was read from a file, as its place in a block. The block stays in memory as long as
// one of its rows is in use, so blocks are small.
struct BlockRow {
  BlockPtr block;
  int64_t row = 0;
};

// Reads the records of one file from its beginning to its end. Not thread-safe.
class BlockReader {
 public:
  virtual ~BlockReader() = default;
  // Returns the next records, at least one, or null at the end and in every call after it. Errors
  // name the file, the place in it, and what was expected there.
  virtual absl::StatusOr<BlockPtr> next() = 0;
  // Passes over records without decoding them. Returns their number, which is smaller than `count`
  // only at the end.
  virtual absl::StatusOr<int64_t> skip(int64_t count) = 0;
};

}  // namespace trireme::internal
