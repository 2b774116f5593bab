#include "trireme/collective/ring_engine.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/collective/parcel_sender.h"
#include "trireme/collective/payload.h"
#include "trireme/collective/ring_call.h"
#include "trireme/collective/ring_lanes.h"
#include "trireme/collective/ring_layout.h"
#include "trireme/collective/ring_stream.h"
#include "trireme/tensor/buffer_pool.h"

// The ranks form a ring: each sends to its right neighbour, which has the next rank. A large tensor
// is cut into as many segments as there are ranks. Segments travel around the ring in steps:
//
//   step 0 … size-2         reduce-scatter: a rank adds its own values to the segment that arrives
//                           and sends the sum on. After these steps it has the sum over all ranks
//                           of the segment with its own number.
//   step size-1 … 2 size-3  all-gather: a rank stores the sum that arrives and sends it on.
//
// In step t a rank sends segment rank - 1 - t and receives segment rank - 2 - t (modulo size), so
// that it always sends on the segment that it received in the step before. Reduce-scatter and
// all-gather are the two halves. Every rank sends 2 (size-1) / size of the tensor, which is the
// least that is possible, but the number of steps makes it slow for small tensors. These are
// exchanged directly, or by recursive doubling if there are many ranks.
//
// Segments are cut into pieces. A piece is sent on as soon as it has arrived, while the next ones
// are still under way. If the ranks have lanes, the pieces of large tensors are bytes there
// (ring_stream.h). Otherwise each of them is a parcel.
//
// Parcels refer to the memory of the tensor until they are taken. A piece that is sent in the
// reduce-scatter is overwritten by its sum, which the all-gather brings back. The sum contains the
// values that were sent, so the right neighbour has read them by then. The all-gather's pieces are
// final. No piece that is under way is therefore overwritten by the call itself, and the call waits
// for all of its parcels to be taken before it returns, because its caller may overwrite them.
// Direct exchange and doubling send copies, and do not wait.
//
// A rank that makes another call must be noticed even if nobody needs its data. In every call each
// rank sends slot 0 to its right neighbour at once, before it waits for anything, and takes slot 0
// of its left neighbour before it returns. If two ranks differ, then so do two neighbours, and the
// right one of them gets a parcel with another fingerprint. Where a call has no data for slot 0,
// the parcel is empty; it arrives together with the data, and nobody waits longer for it.
namespace trireme::internal {
namespace {

// Size of a piece. A parcel fits into one frame (rpc/frame.h), and several are under way at once.
constexpr int64_t kPieceBytes = 1008 << 10;
// Segments are cut into several pieces, so that steps overlap, but not into smaller ones than this.
constexpr int64_t kSmallestPieceBytes = 256 << 10;
// Tensors are exchanged directly if a rank sends no more than this, to no more ranks than this.
constexpr int64_t kDirectBytes = 1 << 20;
constexpr int kDirectRanks = 4;
// Other tensors are combined by doubling up to this size (docs/scale.md).
constexpr int64_t kDoublingBytes = 1 << 20;
// Size of a piece on a lane, of which few are under way, and the smallest tensor for which the two
// messages of the comparison pay off.
constexpr int64_t kLanePieceBytes = 256 << 10;
constexpr int64_t kSmallestOnLanes = 256 << 10;

// Notes that the parcel of a slot has come. Returns false for a slot that the call does not have,
// and for a second parcel of a slot, which would be counted in place of one that is missing.
bool note_slot(std::vector<bool>& seen, uint32_t slot) {
  if (slot >= seen.size() || seen[slot]) return false;
  seen[slot] = true;
  return true;
}

class RingEngine final : public CollectiveEngine {
 public:
  RingEngine(Group& group, std::optional<RingLanes> lanes)
      : group_(group), sender_(group), lanes_(std::move(lanes)) {}

  const char* name() const override { return "ring"; }

  absl::Status run(const CollectiveCall& call) override {
    const at::NoGradGuard no_grad;
    absl::Status result;
    const absl::Status thrown = try_call([&] { result = run_kind(call); });
    return thrown.ok() ? result : thrown;
  }

 private:
  absl::Status run_kind(const CollectiveCall& call);
  absl::Status all_reduce(RingCall& ring, const CollectiveCall& call);
  absl::Status exchange_directly(RingCall& ring, const CollectiveCall& call);
  absl::Status double_recursively(RingCall& ring, const CollectiveCall& call);
  // Carries out the steps from `first_step` to before `end_step` of the ring, with segments of
  // `stride` elements.
  absl::Status go_around(RingCall& ring, const CollectiveCall& call, int64_t stride, int first_step,
                         int end_step);
  // The same with parcels.
  absl::Status pass_around(RingCall& ring, const CollectiveCall& call, const RingLayout& layout,
                           int first_step, int end_step);
  absl::Status broadcast(RingCall& ring, const CollectiveCall& call);
  absl::Status all_to_all(RingCall& ring, const CollectiveCall& call);
  absl::Status barrier(RingCall& ring);

  Group& group_;
  ParcelSender sender_;
  std::optional<RingLanes> lanes_;  // nullopt if all bytes travel in parcels
};

absl::Status RingEngine::run_kind(const CollectiveCall& call) {
  if (const absl::Status failure = group_.failure(); !failure.ok()) return failure;
  const int size = group_.size();
  if (size == 1) {
    make_alone(call);
    return absl::OkStatus();
  }
  RingCall ring(group_, sender_, call);
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return all_reduce(ring, call);
    case CollectiveKind::kReduceScatter:
      return go_around(ring, call, call.output.numel(), 0, size - 1);
    case CollectiveKind::kAllGather: {
      const int64_t stride = call.input.numel();
      call.output.view(-1).narrow(0, stride * group_.rank(), stride).copy_(call.input.view(-1));
      return go_around(ring, call, stride, size - 1, 2 * size - 2);
    }
    case CollectiveKind::kBroadcast:
      return broadcast(ring, call);
    case CollectiveKind::kAllToAll:
      return all_to_all(ring, call);
    case CollectiveKind::kBarrier:
      return barrier(ring);
  }
  return make_status(ErrorCode::kInternal, "the ring has no such call");
}

absl::Status RingEngine::all_reduce(RingCall& ring, const CollectiveCall& call) {
  const int64_t bytes = static_cast<int64_t>(call.output.nbytes());
  const int size = ring.size();
  const bool on_lanes = lanes_ && size <= kDirectRanks && bytes >= kSmallestOnLanes;
  if (!on_lanes && size <= kDirectRanks && bytes * (size - 1) <= kDirectBytes) {
    return exchange_directly(ring, call);
  }
  if (!on_lanes && bytes <= kDoublingBytes) return double_recursively(ring, call);
  const int64_t stride =
      divide_up(divide_up(call.output.numel(), size), kSegmentAlignment) * kSegmentAlignment;
  return go_around(ring, call, stride, 0, 2 * size - 2);
}

// Every rank sends its values to all others, and combines all of them in the order of the ranks.
absl::Status RingEngine::exchange_directly(RingCall& ring, const CollectiveCall& call) {
  const at::Tensor values = call.output.view(-1);
  const at::Tensor own = values.clone();
  std::vector<int> missing;
  for (int i = 1; i < ring.size(); ++i) {
    missing.push_back((ring.rank() + i) % ring.size());
    ring.send(missing.back(), 0, own);
  }
  std::vector<Parcel> received(ring.size());
  while (!missing.empty()) {
    TRIREME_ASSIGN_OR_RETURN(Parcel parcel, ring.next(missing));
    if (parcel.slot != 0 || std::erase(missing, parcel.from) == 0 ||
        !payload_fits(parcel, values)) {
      return ring.unexpected(parcel);
    }
    received[parcel.from] = std::move(parcel);
  }
  // The first two values are combined in either order, which gives the same.
  if (ring.rank() > 1) copy_payload(received[0], values);
  combine_payload(call.reduction, values, received[ring.rank() == 1 ? 0 : 1], values);
  for (int rank = 2; rank < ring.size(); ++rank) {
    if (rank == ring.rank()) {
      combine(call.reduction, values, own, values);
    } else {
      combine_payload(call.reduction, values, received[rank], values);
    }
  }
  finish_mean(call.reduction, values, ring.size());
  return absl::OkStatus();
}

// Ranks combine their values in pairs at a distance of 1, 2, 4, … until each has the values of all.
// If the number of ranks is not a power of two, the ranks beyond the largest one give their values
// to a rank below it before, and get the result from it afterwards.
absl::Status RingEngine::double_recursively(RingCall& ring, const CollectiveCall& call) {
  constexpr uint32_t kGive = 1, kResult = 2, kFirstRound = 3;
  const at::Tensor values = call.output.view(-1);
  const auto take_values = [&](int from, uint32_t slot, bool result) -> absl::Status {
    TRIREME_ASSIGN_OR_RETURN(const Parcel parcel, ring.take(from, slot));
    if (!payload_fits(parcel, values)) return ring.unexpected(parcel);
    if (result) {
      copy_payload(parcel, values);
    } else {
      combine_payload(call.reduction, values, parcel, values);
    }
    return absl::OkStatus();
  };
  const int rank = ring.rank();
  const int paired = static_cast<int>(std::bit_floor(static_cast<unsigned>(ring.size())));
  const bool has_guest = rank + paired < ring.size();
  ring.send(ring.right(), 0, {});
  if (rank >= paired) {
    ring.send(rank - paired, kGive, values.clone());
    TRIREME_RETURN_IF_ERROR(take_values(rank - paired, kResult, /*result=*/true));
  } else {
    if (has_guest) TRIREME_RETURN_IF_ERROR(take_values(rank + paired, kGive, false));
    uint32_t slot = kFirstRound;
    for (int distance = 1; distance < paired; distance *= 2, ++slot) {
      ring.send(rank ^ distance, slot, values.clone());
      TRIREME_RETURN_IF_ERROR(take_values(rank ^ distance, slot, false));
    }
    finish_mean(call.reduction, values, ring.size());
    if (has_guest) ring.send(rank + paired, kResult, values.clone());
  }
  return ring.take(ring.left(), 0).status();
}

absl::Status RingEngine::go_around(RingCall& ring, const CollectiveCall& call, int64_t stride,
                                   int first_step, int end_step) {
  const at::Tensor& whole = call.kind == CollectiveKind::kReduceScatter ? call.input : call.output;
  if (lanes_ && static_cast<int64_t>(whole.nbytes()) >= kSmallestOnLanes) {
    const RingLayout layout(whole, stride, kLanePieceBytes, kLanePieceBytes / 4);
    return stream_around(group_, ring, *lanes_, call, layout, first_step, end_step);
  }
  const RingLayout layout(whole, stride, kPieceBytes, kSmallestPieceBytes);
  return pass_around(ring, call, layout, first_step, end_step);
}

absl::Status RingEngine::pass_around(RingCall& ring, const CollectiveCall& call,
                                     const RingLayout& layout, int first_step, int end_step) {
  const int size = ring.size();
  const at::Tensor output = call.output.view(-1);
  const bool scatters = call.kind == CollectiveKind::kReduceScatter;
  const at::Tensor own = scatters ? call.input.view(-1) : output;
  const std::vector<int> neighbours = {ring.left(), ring.right()};

  const int first_segment = (ring.rank() - 1 - first_step + 2 * size) % size;
  for (int64_t piece = 0; piece < layout.pieces; ++piece) {
    ring.enqueue(ring.right(), piece, layout.piece(own, first_segment, piece));
  }
  const int64_t parcels = layout.pieces * (end_step - first_step);
  std::vector<bool> seen(parcels);
  for (int64_t i = 0; i < parcels; ++i) {
    TRIREME_ASSIGN_OR_RETURN(const Parcel parcel, ring.next(neighbours));
    if (parcel.from != ring.left() || !note_slot(seen, parcel.slot)) return ring.unexpected(parcel);
    const int step = first_step + static_cast<int>(parcel.slot / layout.pieces);
    const int64_t piece = parcel.slot % layout.pieces;
    const int segment = (ring.rank() - 2 - step + 4 * size) % size;
    at::Tensor value = layout.piece(own, segment, piece);
    if (!payload_fits(parcel, value)) return ring.unexpected(parcel);
    if (step >= size - 1) {
      copy_payload(parcel, value);
    } else {
      const at::Tensor values = value;
      if (scatters) {  // The input stays as it is.
        value = step == size - 2 ? layout.piece(output, 0, piece)
                                 : BufferPool::shared().empty(values.sizes(), values.scalar_type());
      }
      combine_payload(call.reduction, values, parcel, value);
      if (step == size - 2) finish_mean(call.reduction, value, size);
    }
    if (step + 1 < end_step) {
      ring.enqueue(ring.right(), parcel.slot + layout.pieces, value, /*urgent=*/true);
    }
  }
  return ring.flush();
}

// The root's pieces are sent on from rank to rank. They begin with slot 1.
absl::Status RingEngine::broadcast(RingCall& ring, const CollectiveCall& call) {
  const at::Tensor values = call.output.view(-1);
  const RingLayout layout(values, values.numel(), kPieceBytes, kSmallestPieceBytes);
  const bool is_root = ring.rank() == call.root;
  const bool is_last = ring.right() == call.root;
  ring.send(ring.right(), 0, {});
  for (int64_t piece = 0; is_root && piece < layout.pieces; ++piece) {
    ring.enqueue(ring.right(), 1 + piece, layout.piece(values, 0, piece));
  }
  const int64_t parcels = is_root ? 1 : 1 + layout.pieces;
  std::vector<bool> seen(parcels);
  for (int64_t i = 0; i < parcels; ++i) {
    TRIREME_ASSIGN_OR_RETURN(const Parcel parcel, ring.next({ring.left(), ring.right()}));
    if (parcel.from != ring.left() || !note_slot(seen, parcel.slot)) return ring.unexpected(parcel);
    if (parcel.slot == 0) continue;
    const at::Tensor place = layout.piece(values, 0, parcel.slot - 1);
    if (!payload_fits(parcel, place)) return ring.unexpected(parcel);
    copy_payload(parcel, place);
    if (!is_last) ring.enqueue(ring.right(), parcel.slot, place);
  }
  return ring.flush();
}

// Every rank sends its parts to the ranks that they are for, and begins with its right neighbour,
// so that the ranks do not all send to the same one.
absl::Status RingEngine::all_to_all(RingCall& ring, const CollectiveCall& call) {
  const int size = ring.size();
  const at::Tensor input = call.input.view(-1);
  const at::Tensor output = call.output.view(-1);
  const RingLayout layout(input, input.numel() / size, kPieceBytes, kSmallestPieceBytes);
  for (int64_t piece = 0; piece < layout.pieces; ++piece) {
    for (int i = 1; i < size; ++i) {
      const int to = (ring.rank() + i) % size;
      ring.enqueue(to, piece, layout.piece(input, to, piece));
    }
    layout.piece(output, ring.rank(), piece).copy_(layout.piece(input, ring.rank(), piece));
  }
  std::vector<int64_t> left(size, layout.pieces);  // number of parcels to come, by sender
  std::vector<std::vector<bool>> seen(size, std::vector<bool>(layout.pieces));
  left[ring.rank()] = 0;
  seen[ring.rank()].clear();
  for (int64_t i = 0; i < layout.pieces * (size - 1); ++i) {
    std::vector<int> missing;
    for (int rank = 0; rank < size; ++rank) {
      if (left[rank] > 0) missing.push_back(rank);
    }
    TRIREME_ASSIGN_OR_RETURN(const Parcel parcel, ring.next(missing));
    if (!note_slot(seen[parcel.from], parcel.slot)) return ring.unexpected(parcel);
    --left[parcel.from];
    const at::Tensor place = layout.piece(output, parcel.from, parcel.slot);
    if (!payload_fits(parcel, place)) return ring.unexpected(parcel);
    copy_payload(parcel, place);
  }
  return ring.flush();
}

// In round k each rank tells the rank at a distance of 2^k that it has heard, directly or through
// others, of the 2^k ranks before it. After the last round it has heard of all.
absl::Status RingEngine::barrier(RingCall& ring) {
  uint32_t round = 0;
  for (int distance = 1; distance < ring.size(); distance *= 2, ++round) {
    ring.send((ring.rank() + distance) % ring.size(), round, {});
    const int from = (ring.rank() - distance + ring.size()) % ring.size();
    TRIREME_RETURN_IF_ERROR(ring.take(from, round).status());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CollectiveEngine>> make_ring_engine(Group& group, Time deadline) {
  TRIREME_ASSIGN_OR_RETURN(auto lanes, connect_ring_lanes(group, deadline));
  return std::make_unique<RingEngine>(group, std::move(lanes));
}

}  // namespace trireme::internal
