#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

namespace trireme::internal {

// Decides when a queue has to raise a fence, and keeps track of it (closure_fence.h).
//
// A closure whose worker has answered with a result needs no fence: the servers have acknowledged
// all its updates, and recognise copies of them. Updates may still be under way if an attempt ended
// in another way: its worker was lost, it was cancelled, or it failed. These attempts are noted as
// unsettled, and a fence is raised before the user may rely on their end. So a fence costs nothing
// as long as nothing fails.
//
// This class only decides; the queue raises the fences. Not thread-safe: guarded by the queue's
// lock. All numbers are sequences: `below` stands for all closures with a lower one.
class FenceProgress {
 public:
  // Notes that closures below `below` were given to a worker.
  void note_sent(uint64_t below) { sent_ = std::max(sent_, below); }
  // Notes that updates of a closure below `below` may be under way although it is not in flight any
  // more.
  void note_unsettled(uint64_t below) { unsettled_ = std::max(unsettled_, below); }

  // Returns the sequence from which on no closure is unsettled, whether a fence was raised or not.
  uint64_t unsettled() const { return unsettled_; }

  // Wants a fence below `next`, the next sequence, if a closure is unsettled. Called when no
  // closure is in flight.
  void settle(uint64_t next) {
    if (unsettled_ > wanted_) wanted_ = next;
  }
  // Does the same for all closures that were sent. Called when those in flight are cancelled.
  void settle_cancelled(uint64_t next) {
    if (sent_ > wanted_) wanted_ = next;
  }

  // Returns true if a fence is wanted and was not raised yet.
  bool must_raise() const { return raised_ < wanted_; }
  // Returns the sequence below which the caller has to raise a fence, or nullopt if there is
  // nothing to raise.
  std::optional<uint64_t> raise() {
    if (!must_raise()) return std::nullopt;
    return raised_ = wanted_;
  }
  // Notes that the fence below `below` is complete.
  void note_complete(uint64_t below) { complete_ = std::max(complete_, below); }
  // Returns true while a fence is wanted and not complete.
  bool is_pending() const { return complete_ < wanted_; }

 private:
  uint64_t sent_ = 0, unsettled_ = 0;
  uint64_t wanted_ = 0, raised_ = 0, complete_ = 0;
};

}  // namespace trireme::internal
