#include "trireme/ps/sharded_push.h"

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/ps/packing.h"
#include "trireme/ps/shard_rows.h"
#include "trireme/ps/shard_versions.h"
#include "trireme/ps/update.h"
#include "trireme/tensor/codec.h"

// A whole update is cut into views of its rows, one for each shard. An update by rows is divided by
// the shards that hold the rows, and the rows of each shard are gathered into a tensor of their
// own. A sparse tensor is an update by rows whose ids are its indices. Shapes, dtypes and ids are
// checked here, before anything is sent, so that a wrong update does not change some of the
// servers. So are variables that are named twice: a shard records one update for each push and
// would take the second update for a repetition of the first.
namespace trireme::internal {
namespace {

// Returns an error if two pushes name the same variable. A variable is known by its first shard:
// the server and the handle there. Most pushes list the variables of a server in the order of their
// handles, so that one pass shows that all differ.
absl::Status check_named_once(const std::vector<PsPush>& pushes) {
  std::vector<std::tuple<size_t, uint64_t, size_t>> named;  // server, handle, index of the push
  std::vector<uint64_t> highest;                            // highest handle so far, by server
  bool ascending = true;
  named.reserve(pushes.size());
  for (size_t i = 0; i < pushes.size(); ++i) {
    const PsVariable& variable = pushes[i].variable;
    if (variable.layout().shards.empty()) continue;
    const size_t server = variable.layout().shards[0].server;
    named.emplace_back(server, variable.handle(0), i);
    if (server >= highest.size()) highest.resize(server + 1, 0);
    ascending = ascending && variable.handle(0) > highest[server];
    highest[server] = variable.handle(0);
  }
  if (ascending) return absl::OkStatus();
  std::sort(named.begin(), named.end());
  const auto twice =
      std::adjacent_find(named.begin(), named.end(), [](const auto& a, const auto& b) {
        return std::get<0>(a) == std::get<0>(b) && std::get<1>(a) == std::get<1>(b);
      });
  if (twice == named.end()) return absl::OkStatus();
  return named_twice(pushes[std::get<2>(*twice)].variable.layout().object());
}

}  // namespace

absl::StatusOr<ShardedPush> ShardedPush::split(const std::vector<PsPush>& pushes) {
  if (pushes.size() > 1) TRIREME_RETURN_IF_ERROR(check_named_once(pushes));
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
  const size_t index = shards_.size();
  shards_.push_back(layout.shards.size());
  for (size_t s = 0; s < layout.shards.size(); ++s) {
    const VariableLayout::Shard& shard = layout.shards[s];
    // A shard without a changed row takes no part: its optimizer does not count a step.
    if (rows.defined() && split[s].ids.numel() == 0) continue;
    ServerBatch& batch = batches_[shard.server];
    batch.slices.push_back({index, s});
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

bool ShardedPush::add(const ShardedPull& pull) {
  if (pull.servers() == 0 || !pull.is_small_and_whole()) return false;
  size_t asked = 0;
  for (const auto& [server, batch] : batches_) asked += pull.handles(server) != nullptr;
  if (asked != pull.servers()) return false;
  for (auto& [server, batch] : batches_) {
    if (const auto* handles = pull.handles(server)) *batch.body.mutable_then_pull() = *handles;
  }
  return true;
}

std::vector<int> ShardedPush::servers() const {
  std::vector<int> servers;
  for (const auto& [server, batch] : batches_) servers.push_back(server);
  return servers;
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
    // Row ids are not shared: a server checks them before it uses them.
    requests.push_back({server,
                        make_message(batch.body, pack(batch.tensors)),
                        nullptr,
                        {.request = !batch.by_rows}});
    // The request holds what is still needed.
    batch.body.Clear();
    batch.tensors.clear();
  }
  return requests;
}

absl::StatusOr<std::vector<ShardVersions>> ShardedPush::versions(
    const std::vector<Message>& responses) const {
  std::vector<ShardVersions> versions;
  versions.reserve(shards_.size());
  for (size_t shards : shards_) versions.emplace_back(shards);
  size_t response = 0;
  for (const auto& [server, batch] : batches_) {
    TRIREME_RETURN_IF_ERROR(collect_versions<PushResponse>(responses[response++], batch.slices,
                                                           &Slice::push, versions));
  }
  return versions;
}

}  // namespace trireme::internal
