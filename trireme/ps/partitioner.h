#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace trireme {

// Returns the number of shards that a variable with this shape and dtype is cut into, along axis 0.
// Any function with this signature can be used. 1 keeps the variable whole. A variable is never cut
// into more shards than it has rows, whatever the function returns. Example:
//
//   options.partitioner = tr::MinSizePartitioner(256 << 10, /*max_shards=*/8);
using Partitioner = std::function<int64_t(c10::IntArrayRef sizes, c10::ScalarType dtype)>;

// Cuts every variable into `shards` shards, or into one shard per row if it has fewer rows.
// Throws Error if shards < 1.
Partitioner FixedPartitioner(int64_t shards);

// Options of MinSizePartitioner().
struct MinSizeOptions {
  // True to round the number of shards up, as TensorFlow's MinSizePartitioner does. Then shards can
  // be smaller than min_bytes. With min_bytes of 256 KiB and at least two shards allowed, a
  // variable of 257 to 511 KiB has two shards in TensorFlow and with this option, and one without
  // it.
  bool round_up_as_tensorflow = false;
};

// Cuts a variable into as many shards as possible of at least `min_bytes` each, but at most
// `max_shards`: the number of bytes divided by `min_bytes`, rounded down. With 256 KiB, 511 KiB
// make one shard and 512 KiB two. With the default of one shard every variable stays whole, as in
// TensorFlow. Throws Error if an argument is less than 1.
Partitioner MinSizePartitioner(int64_t min_bytes = 256 << 10, int64_t max_shards = 1,
                               MinSizeOptions options = {});

// Cuts a variable into as few shards as possible of at most `max_bytes` each. Shards are larger if
// a single row exceeds `max_bytes` or if `max_shards` does not allow more of them. 0 allows any
// number. Throws Error if max_bytes < 1 or max_shards < 0.
Partitioner MaxSizePartitioner(int64_t max_bytes, int64_t max_shards = 0);

// The way in which shards are assigned to servers.
enum class Placement {
  kRoundRobin,  // assigns shards to the servers in turn, in the order of the variables
  kBalanced,    // assigns each shard, largest first, to the server with the fewest bytes so far
};

// Consecutive rows of a variable, as one shard holds them.
struct RowRange {
  int64_t first = 0;  // number of the first row, counted from 0
  int64_t count = 0;  // number of rows

  // Compares all fields.
  bool operator==(const RowRange&) const = default;
};

// Returns the rows of each of `shards` shards. They differ by at most one row, and the larger
// shards come first: 13 rows over 5 shards give 3, 3, 3, 2, 2.
std::vector<RowRange> split_rows(int64_t rows, int64_t shards);
// Returns the index of the shard that holds a row if split_rows() cuts the variable.
int64_t shard_of_row(int64_t row, int64_t rows, int64_t shards);

}  // namespace trireme
