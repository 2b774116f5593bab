#include "trireme/collective/shm_engine.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/collective/shm_control.h"
#include "trireme/collective/shm_pool.h"
#include "trireme/collective/shm_reduce.h"
#include "trireme/collective/shm_setup.h"
#include "trireme/rpc/shared_segment.h"

// Calls are made in one of two ways.
//
// In place: if the tensors of all ranks of an all_reduce lie in memory from allocate(), each rank
// combines one part of all tensors, where they are, and writes the result to all of them. One wait
// before it makes the values of all ranks visible, one after it the results.
//
// Through slots: every rank has a segment with two slots. Tensors are cut into blocks, and a block
// is moved in three steps: each rank fills its own slot, all wait, and each takes from the slots of
// the others. Blocks of all calls are numbered in one sequence, and even and odd blocks use
// different slots. So a rank may fill its slot for block b + 2 as soon as all have taken block b,
// and they have done so when they come to the wait of block b + 1, which lies in between. No
// further wait is needed.
//
// A large all_reduce does the same in the slots as in place, except that each rank uses its own
// tensor instead of its slot for the part that it combines itself:
//
//   fill b, wait, reduce b, fill b + 1, wait, copy results of b, reduce b + 1, fill b + 2, ...
//
// While b is reduced, the others read and write the slot of b, and the slot of b + 1 is filled.
// After the next wait only its owner uses the slot of b, until it is filled with b + 2 and the wait
// after that is over. A small all_reduce costs more in waits than in sums: after a single wait
// every rank combines all values of all slots.
//
// Values are always combined in the order of the ranks, and all ranks have the bits of one result.

namespace trireme::internal {
namespace {

constexpr int64_t kSlotBytes = 256 << 10;  // two slots of each rank stay in the cache of a core
constexpr int64_t kSmallBytes = 8 << 10;   // size up to which every rank combines all values
constexpr int64_t kShmLine = 64;           // ranks do not write to the same cache line

// A range of bytes.
struct ShmRange {
  int64_t begin = 0, end = 0;
};

// Returns the part of `bytes` bytes that belongs to a rank: equal parts, in whole cache lines.
ShmRange part_of(int rank, int size, int64_t bytes) {
  const int64_t step = (bytes + size * kShmLine - 1) / (size * kShmLine) * kShmLine;
  return {std::min(bytes, rank * step), std::min(bytes, (rank + 1) * step)};
}

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

std::byte* address(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

class ShmEngine final : public CollectiveEngine {
 public:
  ShmEngine(Group& group, std::shared_ptr<ShmControl> control,
            std::vector<std::shared_ptr<SharedSegment>> slots)
      : group_(group),
        rank_(group.rank()),
        size_(group.size()),
        control_(std::move(control)),
        slots_(std::move(slots)),
        pool_(
            std::make_shared<ShmPool>([control = control_](int region, const std::string& handle) {
              control->publish_region(region, handle);
            })),
        opened_(size_, std::vector<std::shared_ptr<SharedSegment>>(ShmControl::kMaxRegions)),
        values_(size_) {}

  const char* name() const override { return "shm"; }
  absl::Status run(const CollectiveCall& call) override;
  at::Tensor allocate(int64_t bytes) override;

 private:
  absl::Status perform(const CollectiveCall& call);
  absl::Status all_reduce(const CollectiveCall& call);
  absl::Status small_all_reduce(const CollectiveCall& call);
  absl::Status all_reduce_in_place(const CollectiveCall& call);
  absl::Status all_reduce_through_slots(const CollectiveCall& call);
  absl::Status reduce_scatter(const CollectiveCall& call);
  absl::Status all_gather(const CollectiveCall& call);
  absl::Status broadcast(const CollectiveCall& call);
  absl::Status all_to_all(const CollectiveCall& call);

  // Moves `bytes` bytes in blocks: calls fill(offset, bytes), waits, and calls take(offset, bytes).
  // Waits at least once.
  template <typename Fill, typename Take>
  absl::Status move_blocks(const CollectiveCall& call, int64_t bytes, int64_t block, Fill fill,
                           Take take);
  // Combines the part of this rank of `bytes` bytes at the addresses in values_, and stores the
  // result at all of them. Returns an error if the group has ended before all was combined. The
  // caller must not wait() then: that would tell the others that the part is done.
  absl::Status reduce_own_part(const CollectiveCall& call, int64_t bytes);
  // Fill the slot for a block of an all_reduce, and copy the results out of it: all parts except
  // for that of this rank.
  void fill_for_others(const CollectiveCall& call, int64_t index);
  void copy_results(const CollectiveCall& call, int64_t index);
  int64_t block_bytes(const CollectiveCall& call, int64_t index) const {
    return std::min<int64_t>(kSlotBytes, call.input.nbytes() - index * kSlotBytes);
  }
  // Fills the slot with a block of each part of the input.
  void fill_parts(const CollectiveCall& call, int64_t offset, int64_t bytes);

  // Calls work(offset, bytes) for chunks of the range that are combined at a time.
  template <typename Work>
  void for_chunks(const CollectiveCall& call, ShmRange range, Work work) const;
  // Combines `result`, which has the values of rank 0, with those of the other ranks, which are
  // `offset` bytes after the addresses in values_.
  void combine_with_rank_0(const CollectiveCall& call, int64_t offset, std::byte* result,
                           int64_t bytes) const;

  // Returns the slot of a rank for the block that is `ahead` blocks after the next.
  std::byte* slot(int rank, int64_t ahead = 0) const {
    return slots_[rank]->data() + (next_block_ + ahead) % 2 * kSlotBytes;
  }
  // Returns the bytes of each part in a slot that has a part for each rank.
  int64_t part_bytes() const { return kSlotBytes / size_ / kShmLine * kShmLine; }
  // Returns the memory of another rank at a place that it has announced.
  absl::StatusOr<std::byte*> open_place(int rank, ShmPlace place, uint64_t bytes);

  Group& group_;
  const int rank_, size_;
  const std::shared_ptr<ShmControl> control_;
  const std::vector<std::shared_ptr<SharedSegment>> slots_;  // by rank
  const std::shared_ptr<ShmPool> pool_;
  std::vector<std::vector<std::shared_ptr<SharedSegment>>> opened_;  // by rank and region
  std::vector<std::byte*> values_;  // addresses of the values of all ranks, by rank
  uint64_t next_block_ = 0;         // number of the next block
  absl::Status failed_;             // After an error the ranks no longer count alike.
};

at::Tensor ShmEngine::allocate(int64_t bytes) {
  // A rank that was frozen may still write to the tensors of a failed group when it thaws. They
  // must not be handed out again.
  if (group_.stop_token().stop_requested()) return {};
  return pool_->allocate(bytes);
}

absl::Status ShmEngine::run(const CollectiveCall& call) {
  TRIREME_RETURN_IF_ERROR(control_->stopped());
  TRIREME_RETURN_IF_ERROR(failed_);
  const c10::InferenceMode no_gradients;
  absl::Status status;
  const absl::Status thrown = try_call([&] { status = perform(call); });
  failed_ = thrown.ok() ? status : thrown;
  return failed_;
}

absl::Status ShmEngine::perform(const CollectiveCall& call) {
  if (size_ == 1) {
    if (call.input.defined()) {
      copy_bytes(address(call.output), address(call.input), call.input.nbytes());
    }
    return absl::OkStatus();
  }
  if (call.kind == CollectiveKind::kAllReduce) return all_reduce(call);
  control_->announce(call, {});
  switch (call.kind) {
    case CollectiveKind::kReduceScatter:
      return reduce_scatter(call);
    case CollectiveKind::kAllGather:
      return all_gather(call);
    case CollectiveKind::kBroadcast:
      return broadcast(call);
    case CollectiveKind::kAllToAll:
      return all_to_all(call);
    default:
      return control_->wait(call);
  }
}

absl::Status ShmEngine::all_reduce(const CollectiveCall& call) {
  const uint64_t bytes = call.input.nbytes();
  if (bytes <= kSmallBytes) return small_all_reduce(call);
  const ShmPlace place = pool_->find(call.input.data_ptr(), bytes);
  control_->announce(call, place);
  // A rank with ordinary memory knows already that the call goes through the slots.
  if (place.region < 0) fill_for_others(call, 0);
  TRIREME_RETURN_IF_ERROR(control_->wait(call));
  int shared = 0;
  for (int rank = 0; rank < size_; ++rank) shared += control_->place_of(rank).region >= 0;
  if (shared == size_) return all_reduce_in_place(call);
  if (shared > 0) {
    if (place.region >= 0) fill_for_others(call, 0);
    TRIREME_RETURN_IF_ERROR(control_->wait(call));
  }
  return all_reduce_through_slots(call);
}

absl::Status ShmEngine::small_all_reduce(const CollectiveCall& call) {
  control_->announce(call, {});
  std::byte* const data = address(call.input);
  const auto fill = [&](int64_t, int64_t bytes) { copy_bytes(slot(rank_), data, bytes); };
  const auto take = [&](int64_t, int64_t bytes) {
    for (int rank = 0; rank < size_; ++rank) values_[rank] = slot(rank);
    for_chunks(call, {0, bytes}, [&](int64_t offset, int64_t chunk) {
      if (rank_ != 0) copy_bytes(data + offset, slot(0) + offset, chunk);
      combine_with_rank_0(call, offset, data + offset, chunk);
    });
  };
  return move_blocks(call, static_cast<int64_t>(call.input.nbytes()), kSmallBytes, fill, take);
}

absl::Status ShmEngine::all_reduce_in_place(const CollectiveCall& call) {
  const int64_t bytes = static_cast<int64_t>(call.input.nbytes());
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) {
      values_[rank] = address(call.input);
    } else {
      TRIREME_ASSIGN_OR_RETURN(values_[rank], open_place(rank, control_->place_of(rank), bytes));
    }
  }
  TRIREME_RETURN_IF_ERROR(reduce_own_part(call, bytes));
  return control_->wait(call);
}

absl::Status ShmEngine::all_reduce_through_slots(const CollectiveCall& call) {
  const int64_t bytes = static_cast<int64_t>(call.input.nbytes());
  const int64_t blocks = (bytes + kSlotBytes - 1) / kSlotBytes;
  for (int64_t index = 0; index < blocks; ++index) {
    for (int rank = 0; rank < size_; ++rank) values_[rank] = slot(rank, index);
    values_[rank_] = address(call.input) + index * kSlotBytes;
    TRIREME_RETURN_IF_ERROR(reduce_own_part(call, block_bytes(call, index)));
    if (index + 1 < blocks) fill_for_others(call, index + 1);
    TRIREME_RETURN_IF_ERROR(control_->wait(call));
    copy_results(call, index);
  }
  next_block_ += blocks;
  return absl::OkStatus();
}

absl::Status ShmEngine::reduce_own_part(const CollectiveCall& call, int64_t bytes) {
  absl::Status stopped;
  for_chunks(call, part_of(rank_, size_, bytes), [&](int64_t offset, int64_t chunk) {
    if (stopped.ok()) stopped = control_->stopped();
    if (!stopped.ok()) return;
    std::byte* const result = values_[0] + offset;
    combine_with_rank_0(call, offset, result, chunk);
    for (int rank = 1; rank < size_; ++rank) copy_bytes(values_[rank] + offset, result, chunk);
  });
  return stopped;
}

void ShmEngine::fill_for_others(const CollectiveCall& call, int64_t index) {
  const int64_t bytes = block_bytes(call, index);
  const std::byte* const data = address(call.input) + index * kSlotBytes;
  const ShmRange own = part_of(rank_, size_, bytes);
  copy_bytes(slot(rank_, index), data, own.begin);
  copy_bytes(slot(rank_, index) + own.end, data + own.end, bytes - own.end);
}

void ShmEngine::copy_results(const CollectiveCall& call, int64_t index) {
  const int64_t bytes = block_bytes(call, index);
  std::byte* const data = address(call.input) + index * kSlotBytes;
  const ShmRange own = part_of(rank_, size_, bytes);
  copy_bytes(data, slot(rank_, index), own.begin);
  copy_bytes(data + own.end, slot(rank_, index) + own.end, bytes - own.end);
}

absl::Status ShmEngine::reduce_scatter(const CollectiveCall& call) {
  const int64_t each = static_cast<int64_t>(call.output.nbytes());
  const auto fill = [&](int64_t offset, int64_t bytes) { fill_parts(call, offset, bytes); };
  const auto take = [&](int64_t offset, int64_t bytes) {
    for (int rank = 0; rank < size_; ++rank) values_[rank] = slot(rank) + rank_ * part_bytes();
    // The output may be a part of the input, so the result is made in the slot.
    std::byte* const result =
        std::exchange(values_[rank_], address(call.input) + rank_ * each + offset);
    for_chunks(call, {0, bytes}, [&](int64_t begin, int64_t chunk) {
      copy_bytes(result + begin, values_[0] + begin, chunk);
      combine_with_rank_0(call, begin, result + begin, chunk);
      copy_bytes(address(call.output) + offset + begin, result + begin, chunk);
    });
  };
  return move_blocks(call, each, part_bytes(), fill, take);
}

absl::Status ShmEngine::all_gather(const CollectiveCall& call) {
  const int64_t each = static_cast<int64_t>(call.input.nbytes());
  const std::byte* const input = address(call.input);
  std::byte* const output = address(call.output);
  const auto fill = [&](int64_t offset, int64_t bytes) {
    copy_bytes(slot(rank_), input + offset, bytes);
  };
  const auto take = [&](int64_t offset, int64_t bytes) {
    for (int rank = 0; rank < size_; ++rank) {
      copy_bytes(output + rank * each + offset, rank == rank_ ? input + offset : slot(rank), bytes);
    }
  };
  return move_blocks(call, each, kSlotBytes, fill, take);
}

absl::Status ShmEngine::broadcast(const CollectiveCall& call) {
  std::byte* const data = address(call.output);
  const auto fill = [&](int64_t offset, int64_t bytes) {
    if (rank_ == call.root) copy_bytes(slot(rank_), data + offset, bytes);
  };
  const auto take = [&](int64_t offset, int64_t bytes) {
    if (rank_ != call.root) copy_bytes(data + offset, slot(call.root), bytes);
  };
  return move_blocks(call, static_cast<int64_t>(call.output.nbytes()), kSlotBytes, fill, take);
}

absl::Status ShmEngine::all_to_all(const CollectiveCall& call) {
  const int64_t each = static_cast<int64_t>(call.input.nbytes()) / size_;
  const auto fill = [&](int64_t offset, int64_t bytes) { fill_parts(call, offset, bytes); };
  const auto take = [&](int64_t offset, int64_t bytes) {
    for (int rank = 0; rank < size_; ++rank) {
      const std::byte* const from = rank == rank_ ? address(call.input) + rank_ * each + offset
                                                  : slot(rank) + rank_ * part_bytes();
      copy_bytes(address(call.output) + rank * each + offset, from, bytes);
    }
  };
  return move_blocks(call, each, part_bytes(), fill, take);
}

void ShmEngine::fill_parts(const CollectiveCall& call, int64_t offset, int64_t bytes) {
  const int64_t each = static_cast<int64_t>(call.input.nbytes()) / size_;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    copy_bytes(slot(rank_) + rank * part_bytes(), address(call.input) + rank * each + offset,
               bytes);
  }
}

template <typename Fill, typename Take>
absl::Status ShmEngine::move_blocks(const CollectiveCall& call, int64_t bytes, int64_t block,
                                    Fill fill, Take take) {
  int64_t done = 0;
  do {
    const int64_t now = std::min(block, bytes - done);
    fill(done, now);
    TRIREME_RETURN_IF_ERROR(control_->wait(call));
    take(done, now);
    ++next_block_;
    done += now;
  } while (done < bytes);
  return absl::OkStatus();
}

template <typename Work>
void ShmEngine::for_chunks(const CollectiveCall& call, ShmRange range, Work work) const {
  const int64_t chunk = shm_chunk_bytes(call);
  for (int64_t begin = range.begin; begin < range.end; begin += chunk) {
    work(begin, std::min(chunk, range.end - begin));
  }
}

void ShmEngine::combine_with_rank_0(const CollectiveCall& call, int64_t offset, std::byte* result,
                                    int64_t bytes) const {
  for (int rank = 1; rank < size_; ++rank) {
    accumulate_values(call, result, values_[rank] + offset, bytes);
  }
  finish_values(call, result, bytes, size_);
}

absl::StatusOr<std::byte*> ShmEngine::open_place(int rank, ShmPlace place, uint64_t bytes) {
  if (place.region < 0 || place.region >= ShmControl::kMaxRegions) {
    return make_status(ErrorCode::kInternal,
                       absl::StrCat(group_.name_of(rank), " announced a tensor in region ",
                                    place.region, ", which cannot exist"));
  }
  std::shared_ptr<SharedSegment>& segment = opened_[rank][place.region];
  if (segment == nullptr) {
    auto opened = SharedSegment::open(control_->region_handle(rank, place.region));
    if (!opened.ok()) {
      return with_origin(opened.status(), {.task = group_.members()[rank].task.to_string()});
    }
    segment = *std::move(opened);
  }
  if (bytes > segment->size() || place.offset > segment->size() - bytes) {
    return make_status(
        ErrorCode::kInternal,
        absl::StrCat(group_.name_of(rank), " announced a tensor of ", bytes, " bytes at byte ",
                     place.offset, " of a region of ", segment->size(), " bytes"));
  }
  return segment->data() + place.offset;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CollectiveEngine>> make_shm_engine(Group& group, Time deadline) {
  TRIREME_ASSIGN_OR_RETURN(
      ShmSegments segments,
      share_segments(group, ShmControl::bytes(group.size()), 2 * kSlotBytes, deadline));
  return std::make_unique<ShmEngine>(group, std::make_shared<ShmControl>(group, segments.control),
                                     std::move(segments.slots));
}

}  // namespace trireme::internal
