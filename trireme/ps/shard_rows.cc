#include "trireme/ps/shard_rows.h"

#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/ps/kernels.h"
#include "trireme/ps/partitioner.h"
#include "trireme/tensor/buffer_pool.h"
#include "trireme/tensor/dtype.h"

namespace trireme::internal {

TensorShape shard_shape(const VariableLayout& layout, const VariableLayout::Shard& shard) {
  return {layout.dtype, layout.shard_sizes(shard)};
}

at::Tensor shard_slice(const at::Tensor& value, const VariableLayout& layout,
                       const VariableLayout::Shard& shard) {
  return layout.shards.size() == 1 ? value : value.narrow(0, shard.rows.first, shard.rows.count);
}

absl::StatusOr<std::vector<ShardRows>> split_by_shard(const at::Tensor& rows,
                                                      const VariableLayout& layout) {
  if (layout.sizes.empty()) {
    return make_status(ErrorCode::kInvalidArgument, "a scalar has no rows", layout.object());
  }
  if (!c10::isIntegralType(rows.scalar_type(), /*includeBool=*/false)) {
    return make_status(
        ErrorCode::kInvalidArgument,
        absl::StrCat("row ids must be integers, not ", dtype_name(rows.scalar_type())),
        layout.object());
  }
  const at::Tensor ids = rows.detach().to(c10::kCPU, c10::kLong).reshape({-1}).contiguous();
  const int64_t* id = static_cast<const int64_t*>(ids.const_data_ptr());
  const int64_t all = layout.sizes[0], shards = layout.shards.size();
  for (int64_t i = 0; i < ids.numel(); ++i) {
    if (id[i] >= 0 && id[i] < all) continue;
    return make_status(ErrorCode::kOutOfRange,
                       absl::StrCat("row ", id[i], " does not exist; it has ", all, " rows"),
                       layout.object());
  }
  std::vector<ShardRows> split(shards);
  if (shards == 1) {  // the common case: the ids are those of the shard
    split[0].ids = ids;
    return split;
  }
  // The first pass finds the positions, so that the second can allocate ids of the right number.
  for (int64_t i = 0; i < ids.numel(); ++i) {
    split[shard_of_row(id[i], all, shards)].positions.push_back(i);
  }
  for (int64_t s = 0; s < shards; ++s) {
    const auto& positions = split[s].positions;
    split[s].ids = BufferPool::shared().empty({static_cast<int64_t>(positions.size())}, c10::kLong);
    int64_t* local = static_cast<int64_t*>(split[s].ids.data_ptr());
    for (size_t k = 0; k < positions.size(); ++k) {
      local[k] = id[positions[k]] - layout.shards[s].rows.first;
    }
  }
  return split;
}

at::Tensor rows_at(const at::Tensor& whole, const std::vector<int64_t>& positions) {
  std::vector<int64_t> sizes = whole.sizes().vec();
  sizes[0] = static_cast<int64_t>(positions.size());
  at::Tensor rows = BufferPool::shared().empty(sizes, whole.scalar_type());
  char* out = static_cast<char*>(rows.data_ptr());
  const char* in = static_cast<const char*>(whole.const_data_ptr());
  const size_t row = row_bytes(whole);
  for (size_t i = 0; i < positions.size(); ++i) {
    std::memcpy(out + i * row, in + positions[i] * row, row);
  }
  return rows;
}

void set_rows_at(const at::Tensor& whole, const std::vector<int64_t>& positions,
                 const at::Tensor& rows) {
  char* out = static_cast<char*>(whole.data_ptr());
  const char* in = static_cast<const char*>(rows.const_data_ptr());
  const size_t row = row_bytes(whole);
  for (size_t i = 0; i < positions.size(); ++i) {
    std::memcpy(out + positions[i] * row, in + i * row, row);
  }
}

}  // namespace trireme::internal
