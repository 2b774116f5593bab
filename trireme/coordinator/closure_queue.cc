#include "trireme/coordinator/closure_queue.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/closure_errors.h"
#include "trireme/coordinator/spin_wait.h"
#include "trireme/rpc/timer.h"

// Two facts about a closure are tracked separately. It is *decided* once it has a result; the first
// result wins, and later ones are dropped. It is *in flight* from take() until the dispatcher
// returns it with finish() or put_back(), even if it was decided meanwhile, for example by its
// deadline, because a worker may still run it. A closure that waits for a deferred capture is in
// flight too.
//
// This distinction makes the error protocol work. The first error cancels the queued closures and
// is kept in `error_`. The dispatchers tell their workers to cancel, and return the closures in
// flight one by one. When the last one is back, the error is raised, to one caller, and the queue
// accepts closures again. A caller that handles the error thus knows that no connected worker still
// runs an earlier closure.
//
// Workers that are not connected may still run closures: a worker that is frozen or cut off from
// the coordinator can reach the servers later. Before an error is raised, and before join() or
// done() returns success, a fence (closure_fence.h) makes the servers reject the updates of all
// earlier closures. It is needed only if some attempt did not end with a result (FenceProgress).
// With the first error it is raised at once, while the closures in flight are being cancelled: the
// servers may reject some of their updates, and the error waits for the slower of the two. If
// closures are still in flight some seconds after the error, for example because their worker waits
// for a server that is frozen, the fence alone is enough, and they are abandoned. Then nothing but
// abandoned closures has a sequence below `abandoned_below_`, by which they are recognized when
// they return.
//
// Takers do not poll. take() registers a taker that finds no closure, under the same lock under
// which put() queues closures, so no wake-up is lost. wake_takers() removes a taker before it
// notifies it, so each taker is notified once. A notified taker that takes nothing, because its
// worker is down, returns false and the next one is notified. Idle workers go first.
//
// A thread of the user that has to wait does pending work first. It runs deferred captures, which
// only such threads may do, and announces the rest of a burst, since this thread will put nothing
// more for now. It raises a fence that is wanted. It sleeps only if there was nothing to do.
//
// Locks: a dispatcher may call the queue under its own lock, so the queue calls takers, captures,
// progress callbacks and the fence without holding `mutex_`. Objects of the user that a closure
// holds are destroyed without it too (Released).
namespace trireme::internal {
namespace {

// Size of the tensors at which a batch, which travels in one message, is full. A single large
// closure may exceed it.
constexpr uint64_t kBatchBytes = 1 << 20;

Duration cost_of(const Closure& closure) {
  return closure.function->cost.get() * closure.repeat;
}

std::string worker_task(int worker) {
  return absl::StrCat("/job:worker/task:", worker);
}

}  // namespace

absl::Status ClosureQueue::admit() {
  MutexLock lock(mutex_);
  captures_.run(mutex_);
  while (is_settling()) wait();
  return take_error();
}

absl::Status ClosureQueue::take_error() {
  return closed_.ok() ? std::exchange(error_, absl::OkStatus()) : closed_;
}

bool ClosureQueue::is_full(const Closure& closure) {
  if (waiting() >= capacity_) return true;
  const uint64_t oldest = sequences_.watermark();
  const uint64_t open = sequences_.next() - oldest;
  if (open + closure.repeat <= options_.most_open || idle()) return false;
  if (std::exchange(logged_watermark_, oldest) != oldest) {
    log_warning("schedule() waits: closure ", oldest, " is not done yet, and ", open - 1,
                " later runs were scheduled; parameter servers keep a record of each of them until "
                "closure ",
                oldest, " is done");
  }
  return true;
}

absl::Status ClosureQueue::put(const ClosurePtr& closure) {
  bool announce;
  {
    MutexLock lock(mutex_);
    while (is_settling() || (closed_.ok() && error_.ok() && is_full(*closure))) wait();
    if (absl::Status error = take_error(); !error.ok()) return error;
    closure->sequence = sequences_.allocate(closure->repeat);
    closure->place = puts_++;
    deadlines_.add(closure);
    (paused_ ? held_ : queued_).push_back(closure);
    announce = !paused_ && announcer_.note_put(Clock::real().now(), cost_of(*closure));
    if (!announce) announce_later();
  }
  if (announce) wake_takers();
  return absl::OkStatus();
}

void ClosureQueue::announce_later() {
  if (takers_.empty() || !announcer_.schedule_delayed()) return;
  run_at(after(BurstAnnouncer::kDelay), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    {
      MutexLock lock(self->mutex_);
      self->announcer_.note_delay_over();
    }
    self->wake_takers();
  });
}

std::vector<ClosurePtr> ClosureQueue::take(const std::shared_ptr<ClosureTaker>& taker,
                                           Duration lasting, size_t most) {
  std::vector<ClosurePtr> taken;
  Duration sum = {};
  uint64_t bytes = 0;
  MutexLock lock(mutex_);
  const Time now = Clock::real().now();
  // The first closure is taken whatever it costs; the others as long as the sum fits.
  for (auto next = queued_.begin();
       next != queued_.end() && taken.size() < most && bytes < kBatchBytes;) {
    if (!takers_.may_run(**next, taker->worker(), now)) {
      ++next;
      continue;
    }
    sum += cost_of(**next);
    if (!taken.empty() && sum > lasting) break;
    Closure& closure = *taken.emplace_back(std::move(*next));
    closure.worker_ = taker->worker();
    fences_.note_sent(closure.sequence + closure.repeat);
    bytes += closure.bytes();
    next = queued_.erase(next);
  }
  in_flight_ += taken.size();
  if (queued_.empty()) announcer_.note_announced();
  if (!taken.empty()) {
    notify();  // Threads may wait for room in put().
  } else if (closed_.ok()) {
    takers_.add(taker);
  }
  return taken;
}

// Closures return in any order, but run again in the order in which they were put.
void ClosureQueue::insert_in_order(const ClosurePtr& closure, std::deque<ClosurePtr>& into) {
  auto place = into.begin();
  while (place != into.end() && (*place)->place < closure->place) ++place;
  into.insert(place, closure);
}

void ClosureQueue::requeue(const std::vector<ClosurePtr>& closures, bool may_have_pushed) {
  if (closures.empty()) return;
  Released released;
  {
    MutexLock lock(mutex_);
    for (const ClosurePtr& closure : closures) {
      // Before it is given up, if it was abandoned: its elements then count as used.
      if (may_have_pushed) closure->may_have_pushed = true;
      if (!land(closure, released)) continue;
      if (may_have_pushed) note_unsettled(*closure);
      if (closure->result_.has_value()) {
        released.closures.push_back(closure);
      } else {
        insert_in_order(closure, paused_ && !closure->may_have_pushed ? held_ : queued_);
      }
    }
    if (!error_.ok() || !closed_.ok()) cancel_queued(released);
    notify();
  }
  wake_takers();
}

void ClosureQueue::put_back_elsewhere(const std::vector<ClosurePtr>& closures, int worker,
                                      Time until) {
  // They are not queued yet, so only this thread uses them.
  for (const ClosurePtr& closure : closures) closure->avoided.add(worker, until);
  put_back(closures);
  // The worker may wait for closures that it must not take before.
  run_at(until, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->wake_takers();
  });
}

void ClosureQueue::add_worker(int worker) {
  MutexLock lock(mutex_);
  takers_.add_worker(worker);
}

void ClosureQueue::remove_worker(int worker) {
  {
    MutexLock lock(mutex_);
    takers_.remove_worker(worker);
  }
  wake_takers();  // Closures that avoid all other workers may run on them now.
}

uint64_t ClosureQueue::finish(std::vector<Finished> finished) {
  uint64_t cancelled_below = 0;
  bool must_raise;
  Released released;
  {
    MutexLock lock(mutex_);
    for (Finished& each : finished) {
      if (!land(each.closure, released)) continue;
      const absl::Status status = each.result.status();
      if (!status.ok()) {
        note_unsettled(*each.closure);
        if (is_fenced(*each.closure, status)) each.result = cancelled_closure(*each.closure);
      }
      const bool decided = decide(each.closure, std::move(each.result));
      if (decided && !status.ok()) {
        cancelled_below = std::max(cancelled_below, fail(status, released));
      }
    }
    must_raise = fences_.must_raise();
    notify();
  }
  if (must_raise) raise_fence();
  for (const Finished& each : finished) each.closure->release();
  return cancelled_below;
}

bool ClosureQueue::is_fenced(const Closure& closure, const absl::Status& error) const {
  const bool cancels = !error_.ok() || !closed_.ok();
  return cancels && error_code(error) == ErrorCode::kAborted &&
         error_origin(error).task != worker_task(closure.worker_);
}

uint64_t ClosureQueue::expire(Time now) {
  uint64_t cancelled_below = 0;
  Released released;
  {
    MutexLock lock(mutex_);
    while (const ClosurePtr closure = deadlines_.first_late(now)) {
      std::string task;
      // A closure that is not queued is in flight. It stays so until its dispatcher returns it.
      if (std::erase(queued_, closure) + std::erase(held_, closure) == 0) {
        task = worker_task(closure->worker_);
      } else {
        released.closures.push_back(closure);
      }
      const absl::Status error = late_closure(*closure, task);
      decide(closure, error);
      cancelled_below = std::max(cancelled_below, fail(error, released));
      notify();
    }
  }
  if (cancelled_below > 0) raise_fence();
  return cancelled_below;
}

std::optional<Time> ClosureQueue::next_expiry() {
  MutexLock lock(mutex_);
  return deadlines_.plan();
}

uint64_t ClosureQueue::fail(const absl::Status& error, Released& released) {
  if (!error_.ok() || !closed_.ok()) return 0;
  error_ = error;
  failed_at_ = Clock::real().now();
  cancel_queued(released);
  fences_.settle_cancelled(sequences_.next());
  return sequences_.next();
}

Time ClosureQueue::abandon_time() const {
  if (error_.ok() || in_flight_ == 0 || fences_.is_pending()) return Time::max();
  return failed_at_ + options_.cancel_time;
}

bool ClosureQueue::abandon_late() {
  if (error_.ok() || Clock::real().now() < abandon_time()) return false;
  log_warning(in_flight_, " cancelled closures have not returned from their workers; parameter ",
              "servers reject their updates");
  abandoned_below_ = sequences_.next();
  sequences_.decide_all();
  deadlines_.remove_below(abandoned_below_);
  in_flight_ = 0;
  return true;
}

bool ClosureQueue::land(const ClosurePtr& closure, Released& released) {
  if (is_abandoned(*closure)) {
    cancel(closure, released);
    return false;
  }
  --in_flight_;
  return true;
}

void ClosureQueue::cancel(const ClosurePtr& closure, Released& released) {
  decide(closure, cancelled_closure(*closure));
  released.closures.push_back(closure);
}

void ClosureQueue::close(const absl::Status& why) {
  if (options_.fence != nullptr && error_code(why) == ErrorCode::kDataLoss) {
    options_.fence->note_lost(error_origin(why).task);
  }
  // Destroyed after the lock is released.
  WaitingTakers::Takers takers;
  std::deque<DeferredCaptures::Deferred> captures;
  Released released;
  {
    MutexLock lock(mutex_);
    if (!closed_.ok()) return;
    closed_ = why;
    cancel_queued(released);
    takers = takers_.remove_all();
    captures = captures_.remove_all();
    for (const auto& each : captures) {
      if (land(each.closure, released)) cancel(each.closure, released);
    }
    fences_.settle_cancelled(sequences_.next());
    notify();
  }
  raise_fence();
}

absl::Status ClosureQueue::join(Time limit, Duration every,
                                const std::function<void(uint64_t, uint64_t)>& progress) {
  Time report = progress ? after(every) : Time::max();
  MutexLock lock(mutex_);
  for (;;) {
    if (idle()) fences_.settle(sequences_.next());
    if ((idle() || !closed_.ok()) && !fences_.is_pending()) return take_error();
    const Time now = Clock::real().now();
    if (now >= limit) return join_timed_out(left());
    if (now >= report) {
      report = now + every;
      const uint64_t done = decided_, undone = left();
      mutex_.unlock();
      try {
        progress(done, undone);
      } catch (...) {  // The user's callback may throw to end the wait.
        mutex_.lock();
        throw;
      }
      mutex_.lock();
      continue;
    }
    wait(std::min(limit, report));
  }
}

absl::StatusOr<bool> ClosureQueue::done() {
  MutexLock lock(mutex_);
  captures_.run(mutex_);
  abandon_late();
  if (idle()) fences_.settle(sequences_.next());
  if (fences_.must_raise()) {
    mutex_.unlock();
    raise_fence();
    mutex_.lock();
  }
  if (fences_.is_pending() || (closed_.ok() && !idle())) return false;
  if (absl::Status error = take_error(); !error.ok()) return error;
  return true;
}

bool ClosureQueue::is_ready(const Closure& closure) const {
  if (closure.result_.has_value() && closure.result_->ok()) return true;
  const bool is_over = closure.result_.has_value() || is_abandoned(closure) || !closed_.ok();
  return is_over && !fences_.is_pending();
}

ClosureResult ClosureQueue::fetch(const Closure& closure) {
  spin_for(closure);
  MutexLock lock(mutex_);
  while (!is_ready(closure)) wait();
  if (closure.result_.has_value()) return *closure.result_;
  return cancelled_closure(closure);
}

void ClosureQueue::spin_for(const Closure& closure) {
  {
    MutexLock lock(mutex_);
    if (closure.result_.has_value() || !is_worth_spinning(closure.function->cost.get())) return;
    // The closure may be in the unannounced rest of a burst. wait() announces it and returns.
    if (announcer_.has_unannounced()) wait();
  }
  spin_until([&closure] { return closure.decided_.load(std::memory_order_acquire); });
}

bool ClosureQueue::is_decided(const Closure& closure) const {
  MutexLock lock(mutex_);
  return (closure.result_.has_value() || is_abandoned(closure)) && is_ready(closure);
}

bool ClosureQueue::is_given_up(const std::vector<ClosurePtr>& closures) const {
  MutexLock lock(mutex_);
  for (const ClosurePtr& closure : closures) {
    if (is_abandoned(*closure)) return true;  // Its error was raised, and may not be pending.
  }
  return !closed_.ok() || !error_.ok();
}

void ClosureQueue::defer_capture(const ClosurePtr& closure, Work capture) {
  Released released;
  MutexLock lock(mutex_);
  if (closed_.ok() && !is_abandoned(*closure)) {
    captures_.add(closure, std::move(capture));
  } else if (land(closure, released)) {
    cancel(closure, released);
  }
  notify();
}

bool ClosureQueue::decide(const ClosurePtr& closure, ClosureResult result) {
  if (closure->result_.has_value()) return false;
  closure->result_ = std::move(result);
  closure->decided_.store(true, std::memory_order_release);
  deadlines_.remove(closure);
  if (!is_abandoned(*closure)) sequences_.decide(closure->sequence, closure->repeat);
  ++decided_;
  return true;
}

void ClosureQueue::cancel_queued(Released& released) {
  for (std::deque<ClosurePtr>* each : {&queued_, &held_}) {
    for (const ClosurePtr& closure : *each) cancel(closure, released);
    each->clear();
  }
}

void ClosureQueue::raise_fence() {
  std::optional<uint64_t> below;
  {
    MutexLock lock(mutex_);
    below = fences_.raise();
    if (!below) return;
    if (options_.fence == nullptr) {
      fences_.note_complete(*below);
      return notify();
    }
  }
  options_.fence->raise(*below,
                        [weak = weak_from_this(), below = *below](const auto& /*unconfirmed*/) {
                          const auto self = weak.lock();
                          if (self == nullptr) return;
                          MutexLock lock(self->mutex_);
                          self->fences_.note_complete(below);
                          self->notify();
                        });
}

void ClosureQueue::wait(Time limit) {
  const bool captured = captures_.run(mutex_);
  if (announcer_.has_unannounced()) {
    mutex_.unlock();
    wake_takers();
    mutex_.lock();
  } else if (fences_.must_raise()) {
    mutex_.unlock();
    raise_fence();
    mutex_.lock();
  } else if (!captured && !abandon_late()) {
    sleep(std::min(limit, abandon_time()));
  }
}

void ClosureQueue::sleep(Time limit) {
  ++sleeping_;
  // Bounded even if the user's wait is not. Callers check their condition in a loop.
  changed_.wait_until(mutex_, std::min(limit, after(std::chrono::hours(1))));
  --sleeping_;
}

void ClosureQueue::notify() {
  if (sleeping_ > 0) changed_.notify_all();
}

void ClosureQueue::wake_takers() {
  size_t closures = std::numeric_limits<size_t>::max();
  while (closures > 0) {
    std::shared_ptr<ClosureTaker> taker;
    {
      MutexLock lock(mutex_);
      announcer_.note_announced();
      closures = std::min(closures, queued_.size());
      taker = takers_.remove_next(queued_, Clock::real().now());
    }
    if (taker == nullptr) return;
    if (taker->on_closures()) --closures;
  }
}

}  // namespace trireme::internal
