#include "trireme/coordinator/closure_pause.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/status.h"

// A cut is a point in the order of all updates at which every closure has either applied all its
// updates or none. A pause reaches it in three steps.
//
//   1. Nothing new begins. begin_pause() moves the queued closures to `held_`, from which nothing
//   is
//      taken. A closure that may have pushed, because its worker was lost in mid-push, stays in
//      `queued_`, and so does one that is requeued for that reason later: it has to run to its end.
//   2. The closures in flight are drained. From `drain_until` on, workers are asked to end those
//      that have not begun to push. The request is repeated, because it may overtake a closure.
//   3. A fence keeps out updates of attempts that nobody waits for any more, such as those of a
//      lost worker. It must be confirmed by every server: a server that was stopped while it
//      applied an update would complete that update after the cut.
//
// A fence rejects all updates below a sequence, so it must not cover a closure that is held back.
// Yet such a closure may be older than one whose attempt was lost. Since it has pushed nothing, no
// server knows its sequence, and cut() gives it a new one.
namespace trireme::internal {
namespace {

// Time between two requests to end closures, and between two attempts to raise a fence.
constexpr auto kCancelInterval = std::chrono::milliseconds(100);
constexpr auto kConfirmInterval = std::chrono::milliseconds(500);

// Returns the error of a pause that took too long. `servers` have not confirmed a fence.
absl::Status pause_timed_out(std::string cause, const std::vector<std::string>& servers,
                             const std::vector<std::string>& workers) {
  if (!workers.empty()) absl::StrAppend(&cause, " on ", absl::StrJoin(workers, ", "));
  if (!servers.empty()) {
    absl::StrAppend(&cause, "; ", absl::StrJoin(servers, ", "),
                    " did not confirm that no update is being applied there");
  }
  Origin origin;
  if (!workers.empty()) origin.task = workers.front();
  if (!servers.empty()) origin.task = servers.front();
  return make_status(ErrorCode::kDeadlineExceeded,
                     absl::StrCat("the closures could not be paused in time: ", cause,
                                  ". They go on; see the log of that task, or allow more time"),
                     std::move(origin));
}

}  // namespace

absl::Status ClosureQueue::begin_pause(Time limit) {
  MutexLock lock(mutex_);
  while (paused_ && failure().ok()) {
    if (Clock::real().now() >= limit) return pause_timed_out("another pause lasts", {}, {});
    wait(limit);
  }
  if (!failure().ok()) return failure();
  paused_ = true;
  last_complete_ = ++confirmations_;
  unconfirmed_.clear();
  std::deque<ClosurePtr> queued;
  queued.swap(queued_);
  for (ClosurePtr& closure : queued) {
    (closure->may_have_pushed ? queued_ : held_).push_back(std::move(closure));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ClosureQueue::drain(Time until) {
  MutexLock lock(mutex_);
  for (;;) {
    if (!failure().ok()) return failure();
    if (in_flight_ == 0 && queued_.empty()) return true;
    if (Clock::real().now() >= until) return false;
    wait(until);
  }
}

uint64_t ClosureQueue::cut() {
  MutexLock lock(mutex_);
  for (const ClosurePtr& closure : held_) {
    if (closure->sequence >= fences_.unsettled()) continue;
    sequences_.decide(closure->sequence, closure->repeat);
    closure->sequence = sequences_.allocate(closure->repeat);
  }
  return sequences_.watermark();
}

void ClosureQueue::begin_confirmation(uint64_t below) {
  uint64_t number;
  {
    MutexLock lock(mutex_);
    if (last_complete_ < confirmations_ && confirmed_below_ == below) return;
    number = ++confirmations_;
    confirmed_below_ = below;
    if (options_.fence == nullptr) {
      last_complete_ = number;
      return;
    }
  }
  options_.fence->raise(
      below, [weak = weak_from_this(), number](const std::vector<std::string>& unconfirmed) {
        const auto self = weak.lock();
        if (self == nullptr) return;
        MutexLock lock(self->mutex_);
        if (number < self->confirmations_) return;
        self->last_complete_ = number;
        self->unconfirmed_ = unconfirmed;
        self->notify();
      });
}

absl::StatusOr<bool> ClosureQueue::confirmed(Time until) {
  MutexLock lock(mutex_);
  for (;;) {
    if (!failure().ok()) return failure();
    if (last_complete_ == confirmations_ && unconfirmed_.empty()) return true;
    if (Clock::real().now() >= until) return false;
    wait(until);
  }
}

std::vector<std::string> ClosureQueue::unconfirmed() const {
  {
    MutexLock lock(mutex_);
    if (last_complete_ == confirmations_) return unconfirmed_;
  }
  return options_.fence->awaited();
}

void ClosureQueue::end_pause() {
  {
    MutexLock lock(mutex_);
    paused_ = false;
    queued_.swap(held_);  // Mostly no closure was queued, and all were held.
    const auto middle = queued_.insert(queued_.end(), held_.begin(), held_.end());
    std::ranges::inplace_merge(queued_, middle, {}, &Closure::place);
    held_.clear();
    notify();
  }
  wake_takers();
}

namespace {

absl::Status drain_all(ClosureQueue& queue, PausedWorkers& workers, Time drain_until, Time limit) {
  bool cancels = false;
  for (Time next = std::min(drain_until, limit);;) {
    TRIREME_ASSIGN_OR_RETURN(const bool drained, queue.drain(next));
    if (drained) return absl::OkStatus();
    if (Clock::real().now() >= limit) {
      return pause_timed_out("closures have not ended", queue.unconfirmed(), workers.busy());
    }
    // This fence covers nothing that is under way. It finds servers that do not answer, for which
    // closures may wait.
    if (!std::exchange(cancels, true)) queue.begin_confirmation(queue.watermark());
    workers.cancel_unpushed();
    next = std::min(after(kCancelInterval), limit);
  }
}

// Raises the fence again if a server did not confirm it, since that server may answer later.
absl::Status confirm_fence(ClosureQueue& queue, uint64_t below, Time limit) {
  for (;;) {
    queue.begin_confirmation(below);
    TRIREME_ASSIGN_OR_RETURN(const bool confirmed,
                             queue.confirmed(std::min(after(kConfirmInterval), limit)));
    if (confirmed) return absl::OkStatus();
    if (Clock::real().now() >= limit) {
      return pause_timed_out("all closures have ended", queue.unconfirmed(), {});
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ClosurePause>> pause_closures(
    const std::shared_ptr<ClosureQueue>& queue, PausedWorkers& workers, Time drain_until,
    Time limit) {
  TRIREME_RETURN_IF_ERROR(queue->begin_pause(limit));
  absl::Cleanup undo = [&] { queue->end_pause(); };
  TRIREME_RETURN_IF_ERROR(drain_all(*queue, workers, drain_until, limit));
  const uint64_t below = queue->cut();
  TRIREME_RETURN_IF_ERROR(confirm_fence(*queue, below, limit));
  std::move(undo).Cancel();
  return std::make_unique<ClosurePause>(queue, below);
}

}  // namespace trireme::internal
