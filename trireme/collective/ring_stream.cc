#include "trireme/collective/ring_stream.h"

#include <ATen/ops/empty.h>
#include <poll.h>

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/collective/payload.h"
#include "trireme/tensor/buffer_pool.h"

// A lane carries the pieces of a call one after the other, without headers: all ranks know the
// order. In tick i come piece i of the first step, piece i - kPiecesBetween of the second one, and
// so on, the latest step first. So a neighbour has the time of kPiecesBetween ticks for adding its
// values to a piece and passing it on. Few and small pieces are under way, so what was received is
// still in the cache when it is added and sent.
//
// One thread sends and receives in turn, whatever is possible, and sleeps if nothing is. The kernel
// copies what is sent, so memory may be changed as soon as it was taken. A piece that is sent in
// the reduce-scatter is overwritten only by a sum that contains it (ring_engine.cc).
namespace trireme::internal {
namespace {

using std::chrono::seconds;

// Ticks between two steps of a piece. With none, every rank would have to send a piece before it
// receives it.
constexpr int64_t kPiecesBetween = 2;
static_assert(kPiecesBetween >= 1);
// Time in which the cause of a lost connection may become known: the process at its other end has
// ended, or the group has failed there.
constexpr Duration kFindCause = seconds(1);

// A piece in one step of the ring.
struct Transfer {
  int step;
  int64_t piece;
};

// Returns the transfers of a call in the order in which every rank sends and receives them.
std::vector<Transfer> order_of(const RingLayout& layout, int first_step, int end_step) {
  std::vector<Transfer> order;
  order.reserve(layout.pieces * (end_step - first_step));
  const int64_t ticks = layout.pieces + (end_step - first_step - 1) * kPiecesBetween;
  for (int64_t tick = 0; tick < ticks; ++tick) {
    for (int step = end_step - 1; step >= first_step; --step) {
      const int64_t piece = tick - (step - first_step) * kPiecesBetween;
      if (piece >= 0 && piece < layout.pieces) order.push_back({step, piece});
    }
  }
  return order;
}

class RingStream {
 public:
  RingStream(Group& group, RingCall& ring, RingLanes& lanes, const CollectiveCall& call,
             const RingLayout& layout, int first_step, int end_step)
      : group_(group),
        ring_(ring),
        lanes_(lanes),
        call_(call),
        layout_(layout),
        first_step_(first_step),
        end_step_(end_step),
        output_(call.output.view(-1)),
        own_(call.kind == CollectiveKind::kReduceScatter ? call.input.view(-1) : output_),
        order_(order_of(layout, first_step, end_step)) {
    if (adds(first_step)) scratch_ = at::empty({layout.piece_stride}, output_.options());
  }

  // Sends pieces for which nothing need be received, as far as the connection takes them at once.
  absl::Status begin();
  absl::Status run();

 private:
  bool adds(int step) const { return step < ring_.size() - 1; }
  // Send and receive what is possible without waiting. Return true if that was anything.
  absl::StatusOr<bool> send_some();
  absl::StatusOr<bool> receive_some();
  // Returns true if the next piece to send is there.
  bool can_send() const;
  // Returns this rank's values of the piece that is being received.
  at::Tensor own_values() const;
  // Uses the piece that was received.
  void take_piece();
  // Blocks until something can be sent or received.
  absl::Status wait();
  // Returns the error for the lane to or from a neighbour that was lost.
  absl::Status lost(int rank, const absl::Status& why);

  Group& group_;
  RingCall& ring_;
  RingLanes& lanes_;
  const CollectiveCall& call_;
  const RingLayout& layout_;
  const int first_step_, end_step_;
  const at::Tensor output_, own_;
  const std::vector<Transfer> order_;
  const std::vector<int> neighbours_ = {ring_.left(), ring_.right()};

  size_t sending_ = 0, receiving_ = 0;  // transfers in order_
  size_t sent_ = 0, received_ = 0;      // bytes of these
  at::Tensor outgoing_, incoming_;      // memory of these; undefined before they begin
  at::Tensor scratch_;                  // for values that are added
  std::deque<at::Tensor> passing_;      // pieces that were received and are to be sent on
};

absl::Status RingStream::begin() {
  while (sending_ < order_.size() && order_[sending_].step == first_step_) {
    TRIREME_ASSIGN_OR_RETURN(const bool sent, send_some());
    if (!sent) break;
  }
  return absl::OkStatus();
}

absl::Status RingStream::run() {
  while (sending_ < order_.size() || receiving_ < order_.size()) {
    TRIREME_ASSIGN_OR_RETURN(const bool received, receive_some());
    TRIREME_ASSIGN_OR_RETURN(const bool sent, send_some());
    if (!received && !sent) TRIREME_RETURN_IF_ERROR(wait());
  }
  return absl::OkStatus();
}

bool RingStream::can_send() const {
  return sending_ < order_.size() &&
         (outgoing_.defined() || order_[sending_].step == first_step_ || !passing_.empty());
}

absl::StatusOr<bool> RingStream::send_some() {
  if (!can_send()) return false;
  if (!outgoing_.defined()) {
    if (order_[sending_].step == first_step_) {
      const int segment = (ring_.rank() - 1 - first_step_ + 2 * ring_.size()) % ring_.size();
      outgoing_ = layout_.piece(own_, segment, order_[sending_].piece);
    } else {
      // All ranks pass pieces on in the order in which they receive them.
      outgoing_ = std::move(passing_.front());
      passing_.pop_front();
    }
  }
  const auto sent = lanes_.to_right.send_some(
      static_cast<const char*>(outgoing_.const_data_ptr()) + sent_, outgoing_.nbytes() - sent_);
  if (!sent.ok()) return lost(ring_.right(), sent.status());
  sent_ += *sent;
  const bool complete = sent_ == outgoing_.nbytes();
  if (complete) {
    outgoing_ = at::Tensor();
    sent_ = 0;
    ++sending_;
  }
  return *sent > 0 || complete;
}

at::Tensor RingStream::own_values() const {
  const auto [step, piece] = order_[receiving_];
  const int segment = (ring_.rank() - 2 - step + 4 * ring_.size()) % ring_.size();
  return layout_.piece(own_, segment, piece);
}

absl::StatusOr<bool> RingStream::receive_some() {
  if (receiving_ == order_.size()) return false;
  if (!incoming_.defined()) {
    incoming_ = own_values();
    if (adds(order_[receiving_].step)) incoming_ = scratch_.narrow(0, 0, incoming_.numel());
  }
  const auto got = lanes_.from_left.receive_some(
      static_cast<char*>(incoming_.data_ptr()) + received_, incoming_.nbytes() - received_);
  if (!got.ok()) return lost(ring_.left(), got.status());
  received_ += *got;
  const bool complete = received_ == incoming_.nbytes();
  if (complete) {
    take_piece();
    incoming_ = at::Tensor();
    received_ = 0;
    ++receiving_;
  }
  return *got > 0 || complete;
}

void RingStream::take_piece() {
  const auto [step, piece] = order_[receiving_];
  at::Tensor value = incoming_;
  if (adds(step)) {
    const at::Tensor values = own_values();
    const bool is_last = step == ring_.size() - 2;
    value = values;
    if (call_.kind == CollectiveKind::kReduceScatter) {  // The input stays as it is.
      value = is_last ? layout_.piece(output_, 0, piece)
                      : BufferPool::shared().empty(values.sizes(), values.scalar_type());
    }
    combine_blocks(call_.reduction, values, incoming_, value);
    if (is_last) finish_mean(call_.reduction, value, ring_.size());
  }
  if (step + 1 < end_step_) passing_.push_back(std::move(value));
}

absl::Status RingStream::wait() {
  const int from_left = receiving_ < order_.size() ? lanes_.from_left.socket().get() : -1;
  const int to_right = can_send() ? lanes_.to_right.socket().get() : -1;
  while (true) {
    pollfd waited[] = {{lanes_.stopped->socket().get(), POLLIN, 0},
                       {from_left, POLLIN, 0},
                       {to_right, POLLOUT, 0}};
    const Time limit = ring_.time_to_give_up(neighbours_);
    const int ready = poll(waited, std::size(waited), poll_time(limit));
    if (waited[0].revents != 0) return group_.failure();
    if (ready > 0) return absl::OkStatus();
    const Time now = Clock::real().now();
    if (now >= limit && now >= ring_.time_to_give_up(neighbours_)) return ring_.late(neighbours_);
  }
}

absl::Status RingStream::lost(int rank, const absl::Status& why) {
  if (!wait_for(lanes_.stopped->socket(), POLLIN, after(kFindCause))) {
    group_.suspect(rank, ErrorCode::kTaskUnreachable, std::string(why.message()));
    wait_for(lanes_.stopped->socket(), POLLIN, ring_.time_to_give_up(neighbours_));
  }
  const absl::Status failure = group_.failure();
  return failure.ok() ? why : failure;
}

}  // namespace

absl::Status stream_around(Group& group, RingCall& ring, RingLanes& lanes,
                           const CollectiveCall& call, const RingLayout& layout, int first_step,
                           int end_step) {
  ring.send(ring.right(), 0, {});
  RingStream stream(group, ring, lanes, call, layout, first_step, end_step);
  TRIREME_RETURN_IF_ERROR(stream.begin());
  TRIREME_RETURN_IF_ERROR(ring.take(ring.left(), 0).status());
  return stream.run();
}

}  // namespace trireme::internal
