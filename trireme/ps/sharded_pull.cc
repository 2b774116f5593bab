#include "trireme/ps/sharded_pull.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "trireme/base/status.h"
#include "trireme/ps/kernels.h"
#include "trireme/ps/shard_rows.h"
#include "trireme/ps/shard_versions.h"
#include "trireme/rpc/frame.h"
#include "trireme/rpc/shared_message.h"
#include "trireme/tensor/buffer_pool.h"

// A result is made in one of four ways. The servers write a large variable straight into it, if all
// of them share memory with this process. A variable with one shard is the tensor of the response,
// without a copy. A sharded variable that is pulled whole is allocated before the call, and each
// large slice is received directly into its rows of the result; small slices arrive in the block of
// the response and are copied. Rows of a sharded variable arrive ordered by shard and are copied to
// the positions that their ids have in the list.
namespace trireme::internal {
namespace {

// Returns a function that finds the memory for the tensors of a response; null if there are none.
Destination destination(std::map<size_t, at::Tensor> places) {
  if (places.empty()) return nullptr;
  auto shared = std::make_shared<const std::map<size_t, at::Tensor>>(std::move(places));
  return [shared](size_t index, c10::IntArrayRef, c10::ScalarType) {
    const auto found = shared->find(index);
    return found == shared->end() ? at::Tensor() : found->second;
  };
}

}  // namespace

absl::StatusOr<ShardedPull> ShardedPull::split(std::vector<PsPull> pulls) {
  ShardedPull sharded;
  sharded.pulls_ = std::move(pulls);
  sharded.results_.resize(sharded.pulls_.size());
  for (size_t i = 0; i < sharded.pulls_.size(); ++i) TRIREME_RETURN_IF_ERROR(sharded.add(i));
  return sharded;
}

absl::Status ShardedPull::add(size_t index) {
  const PsPull& pull = pulls_[index];
  const VariableLayout& layout = pull.variable.layout();
  const bool by_rows = pull.rows.defined();
  TensorShape result{layout.dtype, layout.sizes};
  std::vector<ShardRows> rows;
  if (by_rows) {
    TRIREME_ASSIGN_OR_RETURN(rows, split_by_shard(pull.rows, layout));
    result.sizes[0] = pull.rows.numel();
  }
  for (size_t s = 0; s < layout.shards.size(); ++s) {
    // Shards that hold no wanted row are not asked. A variable with one shard always is, since its
    // result is the response.
    if (by_rows && rows[s].ids.numel() == 0 && layout.shards.size() > 1) continue;
    ServerBatch& batch = batches_[layout.shards[s].server];
    TensorShape shape = shard_shape(layout, layout.shards[s]);
    batch.body.add_handles(pull.variable.handle(s));
    if (by_rows) {
      shape.sizes[0] = rows[s].ids.numel();
      batch.ids.push_back(rows[s].ids);
      batch.by_rows = true;
    }
    batch.body.add_rows(by_rows ? shape.sizes[0] + 1 : 0);
    bytes_ += shape.bytes();
    batch.shapes.push_back(std::move(shape));
    batch.slices.push_back(
        {index, s, by_rows ? std::move(rows[s].positions) : std::vector<int64_t>()});
  }
  result_shapes_.push_back(std::move(result));
  return absl::OkStatus();
}

bool ShardedPull::has_large_response() const {
  for (const auto& [server, batch] : batches_) {
    uint64_t response = 0;
    for (const TensorShape& shape : batch.shapes) response += shape.bytes() + kAlignment;
    if (response > kFrameBytes) return true;
  }
  return false;
}

bool ShardedPull::is_small_and_whole() const {
  for (const auto& [server, batch] : batches_) {
    if (batch.by_rows) return false;
  }
  return !has_large_response();
}

const google::protobuf::RepeatedField<uint64_t>* ShardedPull::handles(int server) const {
  const auto found = batches_.find(server);
  return found == batches_.end() ? nullptr : &found->second.body.handles();
}

std::vector<ServerRequest> ShardedPull::make_requests(bool in_place,
                                                      const std::function<bool(int)>& shares) {
  share_results(shares);
  std::vector<ServerRequest> requests;
  requests.reserve(batches_.size());
  for (auto& [server, batch] : batches_) {
    if (!batch.by_rows) batch.body.clear_rows();
    ServerRequest& request =
        requests.emplace_back(ServerRequest{server, make_message(batch.body, pack(batch.ids))});
    if (in_place) request.into = destination(places(batch, /*shared=*/false));
    if (region_ == nullptr) continue;
    auto shared = places(batch, /*shared=*/true);
    if (shared.empty()) continue;
    request.shared.answer =
        std::make_shared<const SharedPlaces>(SharedPlaces{region_, std::move(shared)});
  }
  return requests;
}

void ShardedPull::share_results(const std::function<bool(int)>& shares) {
  in_region_.resize(pulls_.size());
  uint64_t bytes = 0;
  for (size_t i = 0; i < pulls_.size(); ++i) {
    const VariableLayout& layout = pulls_[i].variable.layout();
    const size_t size = result_shapes_[i].bytes();
    if (pulls_[i].rows.defined() || size < kLargeTensorBytes) continue;
    in_region_[i] = std::all_of(layout.shards.begin(), layout.shards.end(),
                                [&](const auto& shard) { return shares(shard.server); });
    if (in_region_[i]) bytes += SharedRegion::padded(size);
  }
  auto region = bytes < kShareFrom ? nullptr : SharedRegion::take(bytes).value_or(nullptr);
  if (region == nullptr) return in_region_.assign(pulls_.size(), false);
  region_ = std::move(region);
  for (size_t i = 0; i < pulls_.size(); ++i) {
    if (!in_region_[i]) continue;
    results_[i] = region_->empty(result_shapes_[i].sizes, result_shapes_[i].dtype);
  }
}

std::map<size_t, at::Tensor> ShardedPull::places(const ServerBatch& batch, bool shared) {
  const Packing packing(batch.shapes);
  std::map<size_t, at::Tensor> places;
  for (size_t i = 0; i < batch.slices.size(); ++i) {
    const size_t pull = batch.slices[i].pull;
    if (!packing.is_large(i) || pulls_[pull].rows.defined() || in_region_[pull] != shared) continue;
    if (!shared && pulls_[pull].variable.layout().shards.size() == 1) continue;
    places[packing.place(i).tensor] = place_of(batch.slices[i]);
  }
  return places;
}

void ShardedPull::leave_region(const ServerBatch& batch, const std::vector<at::Tensor>& received) {
  for (size_t k = 0; k < batch.slices.size(); ++k) {
    const Slice& slice = batch.slices[k];
    if (!in_region_[slice.pull] || received[k].nbytes() < kLargeTensorBytes) continue;
    if (place_of(slice).data_ptr() == received[k].data_ptr()) continue;
    in_region_[slice.pull] = false;
    results_[slice.pull] = at::Tensor();  // result() allocates it anew, and all slices are copied
  }
}

absl::StatusOr<std::vector<ShardVersions>> ShardedPull::versions(
    const std::vector<Message>& responses) const {
  std::vector<ShardVersions> versions;
  versions.reserve(pulls_.size());
  for (const PsPull& pull : pulls_) versions.emplace_back(pull.variable.layout().shards.size());
  size_t response = 0;
  for (const auto& [server, batch] : batches_) {
    TRIREME_RETURN_IF_ERROR(collect_versions<PullResponse>(responses[response++], batch.slices,
                                                           &Slice::pull, versions));
  }
  return versions;
}

absl::StatusOr<std::vector<at::Tensor>> ShardedPull::assemble(
    const std::vector<Message>& responses) {
  std::vector<std::vector<at::Tensor>> all;  // tensors of each response
  all.reserve(batches_.size());
  for (const auto& [server, batch] : batches_) {
    TRIREME_ASSIGN_OR_RETURN(all.emplace_back(),
                             Packing(batch.shapes).unpack(responses[all.size()].tensors));
    if (region_ != nullptr) leave_region(batch, all.back());
  }
  size_t response = 0;
  for (const auto& [server, batch] : batches_) {
    const std::vector<at::Tensor>& received = all[response++];
    for (size_t k = 0; k < batch.slices.size(); ++k) {
      const Slice& slice = batch.slices[k];
      const PsPull& pull = pulls_[slice.pull];
      if (pull.variable.layout().shards.size() == 1) {
        results_[slice.pull] = received[k];
      } else if (pull.rows.defined()) {
        set_rows_at(result(slice.pull), slice.positions, received[k]);
      } else {
        const at::Tensor place = place_of(slice);
        // Equal pointers mean that the slice was received in place.
        if (place.data_ptr() != received[k].data_ptr()) assign(place, received[k]);
      }
    }
  }
  // For a pull of zero rows of a sharded variable no server was asked. Its empty result is
  // allocated here.
  for (size_t i = 0; i < results_.size(); ++i) result(i);
  return std::move(results_);
}

at::Tensor& ShardedPull::result(size_t pull) {
  if (!results_[pull].defined()) {
    results_[pull] =
        BufferPool::shared().empty(result_shapes_[pull].sizes, result_shapes_[pull].dtype);
  }
  return results_[pull];
}

at::Tensor ShardedPull::place_of(const Slice& slice) {
  const RowRange& rows = pulls_[slice.pull].variable.layout().shards[slice.shard].rows;
  return result(slice.pull).narrow(0, rows.first, rows.count);
}

}  // namespace trireme::internal
