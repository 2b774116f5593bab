#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace trireme {

// How many shards a variable is cut into, along axis 0: any function of its shape. More than it has
// rows are that many; 1 leaves it whole.
using Partitioner = std::function<int64_t(c10::IntArrayRef sizes, c10::ScalarType dtype)>;

// min(shards, rows)
Partitioner FixedPartitioner(int64_t shards);

struct MinSizeOptions {
  // TensorFlow rounds the number of shards up, so that one can fall below the minimum.
  bool round_up_as_tensorflow = false;
};
// As many as possible of at least min_bytes each, at most max_shards.
Partitioner MinSizePartitioner(int64_t min_bytes = 256 << 10, int64_t max_shards = 1,
                               MinSizeOptions options = {});

// As few as possible of at most max_bytes each, or of one row where that is larger; at most
// max_shards, 0 for any number.
Partitioner MaxSizePartitioner(int64_t max_bytes, int64_t max_shards = 0);

enum class Placement {
  kRoundRobin,  // shards go to the servers in turn, in the order of the variables
  kBalanced,    // each shard, the largest first, goes to the server with the fewest bytes
};

// Rows of a variable that lie on one server.
struct RowRange {
  int64_t first = 0;
  int64_t count = 0;

  bool operator==(const RowRange&) const = default;
};

// The rows of each of n shards: 13 over 5 are 3 3 3 2 2.
std::vector<RowRange> split_rows(int64_t rows, int64_t shards);
// The shard of a row, as split_rows() cuts.
int64_t shard_of_row(int64_t row, int64_t rows, int64_t shards);

}  // namespace trireme
