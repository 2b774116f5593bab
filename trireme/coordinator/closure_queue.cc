#include "trireme/coordinator/closure_queue.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
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
// Takers do not poll. take() registers a taker that finds the queue empty, under the same lock
// under which put() queues closures, so no wake-up is lost. wake_takers() removes a taker before it
// notifies it, so each taker is notified once. A notified taker that takes nothing, because its
// worker is down, returns false and the next one is notified. Idle workers go first.
//
// A thread of the user that has to wait does pending work first. It runs deferred captures, which
// only such threads may do, and announces the rest of a burst, since this thread will put nothing
// more for now. It sleeps only if there was neither.
//
// Locks: a dispatcher may call the queue under its own lock, so the queue calls takers, captures
// and progress callbacks without holding `mutex_`.
namespace trireme::internal {
namespace {

// Size of the tensors at which a batch, which travels in one message, is full. A single large
// closure may exceed it.
constexpr uint64_t kBatchBytes = 1 << 20;

Duration cost_of(const Closure& closure) {
  return closure.function->cost.get() * closure.repeat;
}

std::string name_of(const Closure& closure) {
  return absl::StrCat("closure ", closure.sequence, " of function '", closure.function->name, "'");
}

absl::Status cancelled(const Closure& closure) {
  return make_status(ErrorCode::kCancelled,
                     "it was cancelled because another closure failed, or the coordinator ended",
                     {"", name_of(closure)});
}

}  // namespace

absl::Status ClosureQueue::admit() {
  MutexLock lock(mutex_);
  captures_.run(mutex_);
  while (closed_.ok() && !error_.ok() && in_flight_ > 0) wait();
  if (!closed_.ok()) return closed_;
  return std::exchange(error_, absl::OkStatus());
}

absl::Status ClosureQueue::put(const ClosurePtr& closure) {
  bool announce;
  {
    MutexLock lock(mutex_);
    while (closed_.ok() && (error_.ok() ? queued_.size() >= capacity_ : in_flight_ > 0)) wait();
    if (!closed_.ok()) return closed_;
    if (!error_.ok()) return std::exchange(error_, absl::OkStatus());
    closure->sequence = sequences_.allocate(closure->repeat);
    if (closure->deadline) deadlines_.insert({*closure->deadline, closure});
    queued_.push_back(closure);
    announce = announcer_.note_put(Clock::real().now(), cost_of(*closure));
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
  // The first closure is taken whatever it costs; the others as long as the sum fits.
  while (!queued_.empty() && taken.size() < most && bytes < kBatchBytes) {
    sum += cost_of(*queued_.front());
    if (!taken.empty() && sum > lasting) break;
    taken.push_back(std::move(queued_.front()));
    taken.back()->worker_ = taker->worker();
    bytes += taken.back()->bytes();
    queued_.pop_front();
  }
  in_flight_ += taken.size();
  if (queued_.empty()) announcer_.note_announced();
  if (!taken.empty()) {
    notify();  // Threads may wait for room in put().
  } else if (closed_.ok()) {
    takers_.push_back(taker);
  }
  return taken;
}

void ClosureQueue::put_back(const std::vector<ClosurePtr>& closures) {
  if (closures.empty()) return;
  std::vector<ClosurePtr> decided;
  {
    MutexLock lock(mutex_);
    in_flight_ -= closures.size();
    // In reverse, because each one is pushed to the front.
    for (auto closure = closures.rbegin(); closure != closures.rend(); ++closure) {
      if ((*closure)->result_.has_value()) {
        decided.push_back(*closure);
      } else {
        queued_.push_front(*closure);
      }
    }
    if (!error_.ok() || !closed_.ok()) cancel_queued();
    notify();
  }
  for (const ClosurePtr& closure : decided) closure->release();
  wake_takers();
}

uint64_t ClosureQueue::finish(std::vector<Finished> finished) {
  uint64_t cancelled_below = 0;
  {
    MutexLock lock(mutex_);
    in_flight_ -= finished.size();
    for (Finished& each : finished) {
      const absl::Status status = each.result.status();
      const bool decided = decide(each.closure, std::move(each.result));
      if (decided && !status.ok()) cancelled_below = std::max(cancelled_below, fail(status));
    }
    notify();
  }
  for (const Finished& each : finished) each.closure->release();
  return cancelled_below;
}

uint64_t ClosureQueue::expire(Time now) {
  MutexLock lock(mutex_);
  if (expiry_ && *expiry_ <= now) expiry_.reset();
  uint64_t cancelled_below = 0;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const ClosurePtr closure = deadlines_.begin()->second;
    std::string task;
    // A closure that is not queued is in flight. It stays so until its dispatcher returns it.
    if (std::erase(queued_, closure) == 0) {
      task = absl::StrCat("/job:worker/task:", closure->worker_);
    }
    const absl::Status error =
        make_status(ErrorCode::kDeadlineExceeded,
                    absl::StrCat("it was not done by its deadline; ",
                                 task.empty() ? "no worker was up and free to run it"
                                              : "it was in flight on this worker"),
                    {task, name_of(*closure)});
    decide(closure, error);
    cancelled_below = std::max(cancelled_below, fail(error));
    notify();
  }
  return cancelled_below;
}

std::optional<Time> ClosureQueue::next_expiry() {
  MutexLock lock(mutex_);
  if (deadlines_.empty()) return std::nullopt;
  const Time first = deadlines_.begin()->first;
  if (expiry_ && *expiry_ <= first) return std::nullopt;
  return expiry_ = first;
}

uint64_t ClosureQueue::fail(const absl::Status& error) {
  if (!error_.ok() || !closed_.ok()) return 0;
  error_ = error;
  cancel_queued();
  return sequences_.next();
}

void ClosureQueue::close(const absl::Status& why) {
  // Destroyed after the lock is released.
  std::deque<std::shared_ptr<ClosureTaker>> takers;
  std::deque<DeferredCaptures::Deferred> captures;
  MutexLock lock(mutex_);
  if (!closed_.ok()) return;
  closed_ = why;
  cancel_queued();
  takers.swap(takers_);
  captures = captures_.remove_all();
  for (const auto& each : captures) decide(each.closure, cancelled(*each.closure));
  in_flight_ -= captures.size();
  notify();
}

absl::Status ClosureQueue::join(Time limit, Duration every,
                                const std::function<void(uint64_t, uint64_t)>& progress) {
  Time report = progress ? after(every) : Time::max();
  MutexLock lock(mutex_);
  while (closed_.ok() && !idle()) {
    const Time now = Clock::real().now();
    if (now >= limit) {
      return make_status(ErrorCode::kDeadlineExceeded,
                         absl::StrCat("join() timed out: ", queued_.size() + in_flight_,
                                      " closures are not done yet; they keep running"));
    }
    if (now >= report) {
      report = now + every;
      const uint64_t done = decided_, left = queued_.size() + in_flight_;
      mutex_.unlock();
      try {
        progress(done, left);
      } catch (...) {  // The user's callback may throw to end the wait.
        mutex_.lock();
        throw;
      }
      mutex_.lock();
      continue;
    }
    wait(std::min(limit, report));
  }
  if (!closed_.ok()) return closed_;
  return std::exchange(error_, absl::OkStatus());
}

absl::StatusOr<bool> ClosureQueue::done() {
  MutexLock lock(mutex_);
  captures_.run(mutex_);
  if (!closed_.ok()) return closed_;
  if (!idle()) return false;
  if (!error_.ok()) return std::exchange(error_, absl::OkStatus());
  return true;
}

ClosureResult ClosureQueue::fetch(const Closure& closure) {
  spin_for(closure);
  MutexLock lock(mutex_);
  while (!closure.result_.has_value() && closed_.ok()) wait();
  if (closure.result_.has_value()) return *closure.result_;
  return cancelled(closure);
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

size_t ClosureQueue::undecided() const {
  MutexLock lock(mutex_);
  return queued_.size() + in_flight_;
}

bool ClosureQueue::is_decided(const Closure& closure) const {
  MutexLock lock(mutex_);
  return closure.result_.has_value();
}

absl::Status ClosureQueue::status() const {
  MutexLock lock(mutex_);
  return closed_;
}

bool ClosureQueue::cancels() const {
  MutexLock lock(mutex_);
  return !closed_.ok() || !error_.ok();
}

void ClosureQueue::defer_capture(const ClosurePtr& closure, Work capture) {
  MutexLock lock(mutex_);
  if (closed_.ok()) {
    captures_.add(closure, std::move(capture));
  } else {
    --in_flight_;
    decide(closure, cancelled(*closure));
  }
  notify();
}

uint64_t ClosureQueue::watermark() const {
  MutexLock lock(mutex_);
  return sequences_.watermark();
}

bool ClosureQueue::decide(const ClosurePtr& closure, ClosureResult result) {
  if (closure->result_.has_value()) return false;
  closure->result_ = std::move(result);
  closure->decided_.store(true, std::memory_order_release);
  if (closure->deadline) deadlines_.erase({*closure->deadline, closure});
  sequences_.decide(closure->sequence, closure->repeat);
  ++decided_;
  return true;
}

void ClosureQueue::cancel_queued() {
  for (const ClosurePtr& closure : queued_) {
    closure->release();
    decide(closure, cancelled(*closure));
  }
  queued_.clear();
}

void ClosureQueue::wait(Time limit) {
  const bool captured = captures_.run(mutex_);
  if (announcer_.has_unannounced()) {
    mutex_.unlock();
    wake_takers();
    mutex_.lock();
  } else if (!captured) {
    sleep(limit);
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
      if (takers_.empty() || queued_.empty()) return;
      // A busy worker may take closures too, so that it has the next batch at hand, but only if no
      // worker is idle.
      auto chosen = std::ranges::find_if(takers_, [](const auto& each) { return each->is_idle(); });
      if (chosen == takers_.end()) chosen = takers_.begin();
      taker = std::move(*chosen);
      takers_.erase(chosen);
    }
    if (taker->on_closures()) --closures;
  }
}

}  // namespace trireme::internal
