#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"
#include "trireme/coordinator/closure.h"

namespace trireme::internal {

// Takes closures from a queue when there are some.
class ClosureTaker {
 public:
  virtual ~ClosureTaker() = default;
  // The taker found nothing and now there is something. False: it can take none any more.
  virtual bool on_closures() = 0;
};

// The closures of a coordinator, from when they are scheduled until they are decided:
//
//   put -> queued -> take -> in flight -> finish -> decided
//             ^                  |
//             +---- put_back ----+      when its worker is lost
//
// The first error of a closure cancels all others. It is raised, once, when none is in flight any
// more: whoever sees it can be sure that nothing of what was scheduled before happens after. While
// it waits to be raised nothing can be put. Thread-safe.
class ClosureQueue {
 public:
  explicit ClosureQueue(size_t capacity) : capacity_(capacity) {}

  // Gives it its sequence. Blocks while the queue is full; put_back does not, so that a full queue
  // never waits for itself.
  absl::Status put(const ClosurePtr& closure);
  // Those at the front, which by their costs take a worker about so long, at least one. None: the
  // taker hears when there are some.
  std::vector<ClosurePtr> take(const std::shared_ptr<ClosureTaker>& taker, Duration lasting,
                               size_t most);
  // To the front: they are the oldest.
  void put_back(const std::vector<ClosurePtr>& closures);
  struct Finished {
    ClosurePtr closure;
    ClosureOutcome outcome;
  };
  // True if that brought the first error: those in flight should be told to end.
  [[nodiscard]] bool finish(std::vector<Finished> finished);
  // Cancels all, now and from now on: every later call gives this error.
  void close(const absl::Status& why);

  // Waits until all are decided.
  absl::Status join();
  absl::StatusOr<bool> done();
  // Waits until it is decided.
  ClosureOutcome fetch(const Closure& closure);
  bool is_decided(const Closure& closure) const;
  // Not OK: it is closed.
  absl::Status status() const;

  // All with smaller sequences are decided.
  uint64_t watermark() const;
  // That of the next to be put.
  uint64_t next_sequence() const;

 private:
  bool idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return queued_.empty() && in_flight_ == 0;
  }
  void decide(Closure& closure, ClosureOutcome outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void cancel_queued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void wait() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void notify() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void wake_takers(size_t closures);

  const size_t capacity_;

  mutable Mutex mutex_;
  CondVar changed_;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<ClosurePtr> queued_ ABSL_GUARDED_BY(mutex_);
  size_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);   // to be raised
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);  // raised always
  std::deque<std::shared_ptr<ClosureTaker>> takers_ ABSL_GUARDED_BY(mutex_);
  uint64_t watermark_ ABSL_GUARDED_BY(mutex_) = 1;
  std::deque<bool> decided_ ABSL_GUARDED_BY(mutex_);  // from the watermark on
};

}  // namespace trireme::internal
