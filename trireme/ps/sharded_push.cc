#include "trireme/ps/sharded_push.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/ps/packing.h"
#include "trireme/ps/shard_rows.h"
#include "trireme/tensor/codec.h"

// A whole update is cut into views of its rows, one for each shard. An update by rows is divided by
// the shards that hold the rows, and the rows of each shard are gathered into a tensor of their
// own. A sparse tensor is an update by rows whose ids are its indices. Shapes, dtypes and ids are
// checked here, before anything is sent, so that a wrong update does not change some of the
// servers.
namespace trireme::internal {

absl::StatusOr<ShardedPush> ShardedPush::split(const std::vector<PsPush>& pushes) {
  ShardedPush sharded;
  for (const PsPush& push : pushes) TRIREME_RETURN_IF_ERROR(sharded.add(push));
  return sharded;
}

absl::Status ShardedPush::add(const PsPush& push) {
  const VariableLayout& layout = push.variable.layout();
  at::Tensor rows = push.rows, values = push.values;
  if (values.defined() && values.is_sparse()) {
    if (rows.defined() || values.sparse_dim() != 1) {
      return make_status(ErrorCode::kInvalidArgument,
                         "a sparse update must have one sparse dimension, and no row ids may be "
                         "given with it",
                         layout.object());
    }
    rows = values._indices().select(0, 0);
    values = values._values();
  }
  TRIREME_ASSIGN_OR_RETURN(values, prepare_to_send(values));
  TensorShape expected{layout.dtype, layout.sizes};
  std::vector<ShardRows> split;
  if (rows.defined()) {
    TRIREME_ASSIGN_OR_RETURN(split, split_by_shard(rows, layout));
    expected.sizes[0] = rows.numel();
  }
  if (TensorShape::of(values) != expected) {
    return make_status(ErrorCode::kInvalidArgument,
                       absl::StrCat("the update is ", to_string(TensorShape::of(values)),
                                    ", but it must be ", to_string(expected)),
                       layout.object());
  }
  for (size_t s = 0; s < layout.shards.size(); ++s) {
    const VariableLayout::Shard& shard = layout.shards[s];
    // A shard without a changed row takes no part: its optimizer does not count a step.
    if (rows.defined() && split[s].ids.numel() == 0) continue;
    ServerBatch& batch = batches_[shard.server];
    batch.body.add_handles(push.variable.handle(s));
    batch.body.add_kinds(static_cast<UpdateKind>(push.kind));
    if (rows.defined()) {
      batch.by_rows = true;
      batch.body.add_rows(split[s].ids.numel() + 1);
      batch.tensors.push_back(split[s].ids);
      batch.tensors.push_back(layout.shards.size() == 1 ? values
                                                        : rows_at(values, split[s].positions));
    } else {
      batch.body.add_rows(0);
      batch.tensors.push_back(shard_slice(values, layout, shard));
    }
    bytes_ += batch.tensors.back().nbytes();
  }
  return absl::OkStatus();
}

std::vector<ServerRequest> ShardedPush::make_requests(const PushOptions& options) {
  std::vector<ServerRequest> requests;
  requests.reserve(batches_.size());
  for (auto& [server, batch] : batches_) {
    batch.body.set_writer(options.id.writer);
    batch.body.set_sequence(options.id.sequence);
    batch.body.set_round(options.id.round);
    batch.body.set_watermark(options.watermark);
    if (options.lr) batch.body.set_lr(*options.lr);
    if (!batch.by_rows) batch.body.clear_rows();
    requests.push_back({server, make_message(batch.body, pack(batch.tensors))});
  }
  batches_.clear();  // the requests hold what is still needed
  return requests;
}

}  // namespace trireme::internal
