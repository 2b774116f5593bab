#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/ps/layout.h"
#include "trireme/ps/packing.h"

// How the value of a variable, or some of its rows, is divided among the shards of the variable.
// Pulls and pushes share this: a pull puts the shards' slices together, a push takes them apart.
namespace trireme::internal {

TensorShape shard_shape(const VariableLayout& layout, const VariableLayout::Shard& shard);

// Returns the slice of a whole value that a shard holds. It shares the value's memory.
at::Tensor shard_slice(const at::Tensor& value, const VariableLayout& layout,
                       const VariableLayout::Shard& shard);

// The ids of a list that belong to one shard.
struct ShardRows {
  at::Tensor ids;                  // int64, counted from the first row of the shard
  std::vector<int64_t> positions;  // in the list; empty if the variable has one shard
};

// Splits row ids by the shards that hold the rows. Fails if some are not rows of the variable.
absl::StatusOr<std::vector<ShardRows>> split_by_shard(const at::Tensor& rows,
                                                      const VariableLayout& layout);

// Returns a copy of the rows at these positions. `whole` is contiguous.
at::Tensor rows_at(const at::Tensor& whole, const std::vector<int64_t>& positions);
// Copies rows to these positions. Both tensors are contiguous.
void set_rows_at(const at::Tensor& whole, const std::vector<int64_t>& positions,
                 const at::Tensor& rows);

}  // namespace trireme::internal
