#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/ps/layout.h"
#include "trireme/ps/packing.h"

// Divides the value of a variable, or some of its rows, among the shards of the variable. Shared by
// pulls, which put the slices of the shards together, and pushes, which take them apart.
namespace trireme::internal {

TensorShape shard_shape(const VariableLayout& layout, const VariableLayout::Shard& shard);

// Returns the slice of a whole value that a shard holds. It shares the value's memory.
at::Tensor shard_slice(const at::Tensor& value, const VariableLayout& layout,
                       const VariableLayout::Shard& shard);

// The part of a list of row ids whose rows one shard holds.
struct ShardRows {
  at::Tensor ids;                  // int64 row ids, counted from the first row of the shard
  std::vector<int64_t> positions;  // positions of the ids in the list; empty if there is one shard
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
