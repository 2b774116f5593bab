#include "trireme/coordinator/closure_queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

// A message carries a batch: of large closures one is enough for it.
constexpr uint64_t kBatchBytes = 1 << 20;

absl::Status cancelled(const Closure& closure) {
  return make_status(ErrorCode::kCancelled,
                     "it was cancelled because another closure failed, or the coordinator ended",
                     {"", absl::StrCat("closure ", closure.sequence, " of function '",
                                       closure.program->function, "'")});
}

}  // namespace

absl::Status ClosureQueue::put(const ClosurePtr& closure) {
  {
    MutexLock lock(mutex_);
    while (closed_.ok() && (error_.ok() ? queued_.size() >= capacity_ : in_flight_ > 0)) wait();
    if (!closed_.ok()) return closed_;
    if (!error_.ok()) return std::exchange(error_, absl::OkStatus());
    closure->sequence = watermark_ + decided_.size();
    decided_.push_back(false);
    queued_.push_back(closure);
  }
  wake_takers(1);
  return absl::OkStatus();
}

std::vector<ClosurePtr> ClosureQueue::take(const std::shared_ptr<ClosureTaker>& taker,
                                           Duration lasting, size_t most) {
  std::vector<ClosurePtr> taken;
  Duration sum = {};
  uint64_t bytes = 0;
  MutexLock lock(mutex_);
  while (!queued_.empty() && taken.size() < most && bytes < kBatchBytes) {
    sum += queued_.front()->program->cost.get();
    if (!taken.empty() && sum > lasting) break;
    taken.push_back(std::move(queued_.front()));
    bytes += taken.back()->bytes();
    queued_.pop_front();
  }
  in_flight_ += taken.size();
  if (!taken.empty()) {
    notify();  // there is room
  } else if (closed_.ok()) {
    takers_.push_back(taker);
  }
  return taken;
}

void ClosureQueue::put_back(const std::vector<ClosurePtr>& closures) {
  if (closures.empty()) return;
  {
    MutexLock lock(mutex_);
    in_flight_ -= closures.size();
    queued_.insert(queued_.begin(), closures.begin(), closures.end());
    if (!error_.ok() || !closed_.ok()) cancel_queued();
    notify();
  }
  wake_takers(closures.size());
}

bool ClosureQueue::finish(std::vector<Finished> finished) {
  std::vector<std::vector<at::Tensor>> inputs;  // freed outside of the lock
  MutexLock lock(mutex_);
  const bool failed_before = !error_.ok() || !closed_.ok();
  bool failed = false;
  in_flight_ -= finished.size();
  for (Finished& each : finished) {
    inputs.push_back(std::move(each.closure->tensors));
    if (!each.outcome.ok() && !failed && !failed_before) {
      failed = true;
      error_ = each.outcome.status();
    }
    decide(*each.closure, std::move(each.outcome));
  }
  if (failed) cancel_queued();
  notify();
  return failed;
}

void ClosureQueue::close(const absl::Status& why) {
  std::deque<std::shared_ptr<ClosureTaker>> takers;
  MutexLock lock(mutex_);
  if (!closed_.ok()) return;
  closed_ = why;
  cancel_queued();
  takers.swap(takers_);
  notify();
}

absl::Status ClosureQueue::join() {
  MutexLock lock(mutex_);
  while (closed_.ok() && !idle()) wait();
  if (!closed_.ok()) return closed_;
  return std::exchange(error_, absl::OkStatus());
}

absl::StatusOr<bool> ClosureQueue::done() {
  MutexLock lock(mutex_);
  if (!closed_.ok()) return closed_;
  if (!idle()) return false;
  if (!error_.ok()) return std::exchange(error_, absl::OkStatus());
  return true;
}

ClosureOutcome ClosureQueue::fetch(const Closure& closure) {
  MutexLock lock(mutex_);
  while (!closure.outcome_.has_value() && closed_.ok()) wait();
  if (closure.outcome_.has_value()) return *closure.outcome_;
  return cancelled(closure);
}

bool ClosureQueue::is_decided(const Closure& closure) const {
  MutexLock lock(mutex_);
  return closure.outcome_.has_value();
}

absl::Status ClosureQueue::status() const {
  MutexLock lock(mutex_);
  return closed_;
}

uint64_t ClosureQueue::watermark() const {
  MutexLock lock(mutex_);
  return watermark_;
}

uint64_t ClosureQueue::next_sequence() const {
  MutexLock lock(mutex_);
  return watermark_ + decided_.size();
}

void ClosureQueue::decide(Closure& closure, ClosureOutcome outcome) {
  closure.outcome_ = std::move(outcome);
  decided_[closure.sequence - watermark_] = true;
  while (!decided_.empty() && decided_.front()) {
    decided_.pop_front();
    ++watermark_;
  }
}

void ClosureQueue::cancel_queued() {
  for (const ClosurePtr& closure : queued_) {
    closure->tensors.clear();
    decide(*closure, cancelled(*closure));
  }
  queued_.clear();
}

void ClosureQueue::wait() {
  ++waiting_;
  // The user's own wait has no end; what it waits for ends when workers are there or lost.
  changed_.wait_until(mutex_, after(std::chrono::hours(1)));
  --waiting_;
}

void ClosureQueue::notify() {
  if (waiting_ > 0) changed_.notify_all();
}

void ClosureQueue::wake_takers(size_t closures) {
  while (closures > 0) {
    std::shared_ptr<ClosureTaker> taker;
    {
      MutexLock lock(mutex_);
      if (takers_.empty() || queued_.empty()) return;
      taker = std::move(takers_.front());
      takers_.pop_front();
    }
    if (taker->on_closures()) --closures;
  }
}

}  // namespace trireme::internal
