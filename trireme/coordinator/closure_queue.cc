#include "trireme/coordinator/closure_queue.h"

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/rpc/timer.h"

namespace trireme::internal {
namespace {

using std::chrono::microseconds;

// A message carries a batch: of large closures one is enough for it.
constexpr uint64_t kBatchBytes = 1 << 20;
// Closures that follow each other faster than this come in a burst.
constexpr Duration kBurst = microseconds(50);
constexpr Duration kAnnouncedWithin = microseconds(200);
// For so long a thread that fetches looks for a quick result, rather than sleep: to be woken takes
// as long as such a closure.
constexpr Duration kQuick = microseconds(100);

std::string name_of(const Closure& closure) {
  return absl::StrCat("closure ", closure.sequence, " of function '", closure.program->function,
                      "'");
}

absl::Status cancelled(const Closure& closure) {
  return make_status(ErrorCode::kCancelled,
                     "it was cancelled because another closure failed, or the coordinator ended",
                     {"", name_of(closure)});
}

}  // namespace

absl::Status ClosureQueue::admit() {
  MutexLock lock(mutex_);
  run_errands();
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
    closure->sequence = sequences_.give(closure->repeat);
    if (closure->deadline) deadlines_.insert({*closure->deadline, closure});
    queued_.push_back(closure);
    announce = announces(*closure);
    if (!announce) announce_soon();
  }
  if (announce) wake_takers();
  return absl::OkStatus();
}

bool ClosureQueue::announces(const Closure& closure) {
  const Time now = Clock::real().now();
  const bool in_burst = now - std::exchange(last_put_, now) < kBurst;
  ++unannounced_;
  unannounced_time_ += closure.program->cost.get() * closure.repeat;
  return !in_burst || unannounced_ >= kBatchClosures || unannounced_time_ >= kBatchTime;
}

void ClosureQueue::note_announced() {
  unannounced_ = 0;
  unannounced_time_ = {};
}

void ClosureQueue::announce_soon() {
  if (takers_.empty() || std::exchange(will_announce_, true)) return;
  run_at(after(kAnnouncedWithin), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    {
      MutexLock lock(self->mutex_);
      self->will_announce_ = false;
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
  while (!queued_.empty() && taken.size() < most && bytes < kBatchBytes) {
    sum += queued_.front()->program->cost.get() * queued_.front()->repeat;
    if (!taken.empty() && sum > lasting) break;
    taken.push_back(std::move(queued_.front()));
    taken.back()->worker_ = taker->worker();
    bytes += taken.back()->bytes();
    queued_.pop_front();
  }
  in_flight_ += taken.size();
  if (queued_.empty()) note_announced();
  if (!taken.empty()) {
    notify();  // there is room
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
    for (auto closure = closures.rbegin(); closure != closures.rend(); ++closure) {
      if ((*closure)->outcome_.has_value()) {
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
      const absl::Status status = each.outcome.status();
      const bool decided = decide(each.closure, std::move(each.outcome));
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
    if (std::erase(queued_, closure) == 0) {
      task = absl::StrCat("/job:worker/task:", closure->worker_);
    }
    const absl::Status error =
        make_status(ErrorCode::kDeadlineExceeded,
                    absl::StrCat("it was not done by its deadline; ",
                                 task.empty() ? "no worker was free" : "this worker was given it"),
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
  std::deque<std::shared_ptr<ClosureTaker>> takers;
  std::deque<Errand> errands;
  MutexLock lock(mutex_);
  if (!closed_.ok()) return;
  closed_ = why;
  cancel_queued();
  takers.swap(takers_);
  errands.swap(errands_);
  for (const Errand& errand : errands) decide(errand.closure, cancelled(*errand.closure));
  in_flight_ -= errands.size();
  notify();
}

absl::Status ClosureQueue::join(Time limit, Duration every,
                                const std::function<void(uint64_t, uint64_t)>& progress) {
  Time report = progress ? after(every) : Time::max();
  MutexLock lock(mutex_);
  while (closed_.ok() && !idle()) {
    const Time now = Clock::real().now();
    if (now >= limit) {
      return make_status(
          ErrorCode::kDeadlineExceeded,
          absl::StrCat(queued_.size() + in_flight_, " closures are not done yet; they go on"));
    }
    if (now >= report) {
      report = now + every;
      const uint64_t done = decided_, left = queued_.size() + in_flight_;
      mutex_.unlock();
      try {
        progress(done, left);
      } catch (...) {  // the user's, who may end the wait so
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
  run_errands();
  if (!closed_.ok()) return closed_;
  if (!idle()) return false;
  if (!error_.ok()) return std::exchange(error_, absl::OkStatus());
  return true;
}

ClosureOutcome ClosureQueue::fetch(const Closure& closure) {
  look_for(closure);
  MutexLock lock(mutex_);
  while (!closure.outcome_.has_value() && closed_.ok()) wait();
  if (closure.outcome_.has_value()) return *closure.outcome_;
  return cancelled(closure);
}

void ClosureQueue::look_for(const Closure& closure) {
  {
    MutexLock lock(mutex_);
    if (closure.outcome_.has_value() || closure.program->cost.get() > kQuick) return;
    if (unannounced_ > 0) wait();
  }
  const Time limit = after(kQuick);
  while (!closure.decided_.load(std::memory_order_acquire) && Clock::real().now() < limit) {
    std::this_thread::yield();
  }
}

size_t ClosureQueue::undecided() const {
  MutexLock lock(mutex_);
  return queued_.size() + in_flight_;
}

bool ClosureQueue::is_decided(const Closure& closure) const {
  MutexLock lock(mutex_);
  return closure.outcome_.has_value();
}

absl::Status ClosureQueue::status() const {
  MutexLock lock(mutex_);
  return closed_;
}

bool ClosureQueue::cancels() const {
  MutexLock lock(mutex_);
  return !closed_.ok() || !error_.ok();
}

void ClosureQueue::add_errand(const ClosurePtr& closure, Work errand) {
  MutexLock lock(mutex_);
  if (closed_.ok()) {
    errands_.push_back({closure, std::move(errand)});
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

bool ClosureQueue::decide(const ClosurePtr& closure, ClosureOutcome outcome) {
  if (closure->outcome_.has_value()) return false;
  closure->outcome_ = std::move(outcome);
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
  const bool ran_errands = run_errands();
  if (unannounced_ > 0) {
    mutex_.unlock();
    wake_takers();
    mutex_.lock();
  } else if (!ran_errands) {
    sleep(limit);
  }
}

void ClosureQueue::sleep(Time limit) {
  ++waiting_;
  // The user's own wait may have no end; what it waits for ends when workers are there or lost.
  changed_.wait_until(mutex_, std::min(limit, after(std::chrono::hours(1))));
  --waiting_;
}

bool ClosureQueue::run_errands() {
  if (errands_.empty()) return false;
  while (!errands_.empty()) {
    Errand errand = std::move(errands_.front());
    errands_.pop_front();
    mutex_.unlock();
    errand.work();
    errand = {};
    mutex_.lock();
  }
  return true;
}

void ClosureQueue::notify() {
  if (waiting_ > 0) changed_.notify_all();
}

void ClosureQueue::wake_takers() {
  size_t closures = std::numeric_limits<size_t>::max();
  while (closures > 0) {
    std::shared_ptr<ClosureTaker> taker;
    {
      MutexLock lock(mutex_);
      note_announced();
      closures = std::min(closures, queued_.size());
      if (takers_.empty() || queued_.empty()) return;
      // One that runs something takes closures too, to have the next at hand; but not while another
      // has nothing to do.
      auto chosen = std::ranges::find_if(takers_, [](const auto& each) { return each->is_idle(); });
      if (chosen == takers_.end()) chosen = takers_.begin();
      taker = std::move(*chosen);
      takers_.erase(chosen);
    }
    if (taker->on_closures()) --closures;
  }
}

}  // namespace trireme::internal
