#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"
#include "trireme/coordinator/closure.h"
#include "trireme/coordinator/decided_sequences.h"

namespace trireme::internal {

// Takes closures from a queue when there are some.
class ClosureTaker {
 public:
  virtual ~ClosureTaker() = default;
  // The taker found nothing and now there is something. False: it took none.
  virtual bool on_closures() = 0;
  // Which worker it takes them for, and whether that has none now.
  virtual int worker() const = 0;
  virtual bool is_idle() const = 0;
};

// The closures of a coordinator, from when they are scheduled until they are decided:
//
//   put -> queued -> take -> in flight -> finish -> decided
//             ^                  |
//             +---- put_back ----+      when its worker is lost
//
// Short closures that are put one right after the other are taken together: those who take are
// woken for the first, and then when there is enough for a batch, the user waits, or a moment has
// passed.
//
// Threads of the user that wait here, for whatever, run errands meanwhile: work that only they may
// do, such as capturing a function.
//
// The first error of a closure cancels all others. It is raised, once, when none is in flight any
// more: whoever sees it can be sure that nothing of what was scheduled before happens after. While
// it waits to be raised nothing can be put. Thread-safe.
class ClosureQueue : public std::enable_shared_from_this<ClosureQueue> {
 public:
  explicit ClosureQueue(size_t capacity) : capacity_(capacity) {}

  // To be asked before a closure is made: waits until an error that is to be raised can be, and
  // gives it.
  absl::Status admit();
  // Gives it its sequences. Blocks while the queue is full; put_back does not, so that a full queue
  // never waits for itself.
  absl::Status put(const ClosurePtr& closure);
  // A batch: those at the front that keep a worker busy for about so long, by their costs, at least
  // one. About as long as the way to a worker takes a few times, so that the way costs little, and
  // a lost worker has little to give back. None: the taker hears when there are some.
  static constexpr Duration kBatchTime = std::chrono::milliseconds(1);
  static constexpr size_t kBatchClosures = 64;
  std::vector<ClosurePtr> take(const std::shared_ptr<ClosureTaker>& taker,
                               Duration lasting = kBatchTime, size_t most = kBatchClosures);
  // To the front: they are the oldest.
  void put_back(const std::vector<ClosurePtr>& closures);
  struct Finished {
    ClosurePtr closure;
    ClosureOutcome outcome;
  };
  // If that brought the first error: those in flight with smaller sequences than this should be
  // told to end. Else 0.
  [[nodiscard]] uint64_t finish(std::vector<Finished> finished);
  // Fails those whose deadline has passed; gives what finish() does.
  [[nodiscard]] uint64_t expire(Time now);
  // When to call that next, unless a caller was told so before.
  std::optional<Time> next_expiry();
  // Cancels all, now and from now on: every later call gives this error.
  void close(const absl::Status& why);

  // For a closure in flight; to be run by the next thread of the user that waits or puts. Once the
  // queue is closed the closure is cancelled instead.
  void add_errand(const ClosurePtr& closure, Work errand);

  // Waits until all are decided. DEADLINE_EXCEEDED at the limit; then all goes on. Calls
  // `progress`, if there is one, every so often, with how many are decided and how many are not.
  absl::Status join(Time limit = Time::max(), Duration every = Duration::max(),
                    const std::function<void(uint64_t done, uint64_t left)>& progress = nullptr);
  // Closures that are not decided.
  size_t undecided() const;
  absl::StatusOr<bool> done();
  // Waits until it is decided.
  ClosureOutcome fetch(const Closure& closure);
  bool is_decided(const Closure& closure) const;
  // Not OK: it is closed.
  absl::Status status() const;
  // Whether what is scheduled is being cancelled, because of an error or for good.
  bool cancels() const;

  // All with smaller sequences are decided.
  uint64_t watermark() const;

 private:
  bool idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return queued_.empty() && in_flight_ == 0;
  }
  // False if it was decided before.
  bool decide(const ClosurePtr& closure, ClosureOutcome outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Notes an error of a closure; gives what finish() does.
  uint64_t fail(const absl::Status& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void cancel_queued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets what was put go, and runs errands; if there was neither, sleeps until something changes.
  void wait(Time limit = Time::max()) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether those who take should hear of this closure, and the ones before it, now.
  bool announces(const Closure& closure) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void note_announced() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void announce_soon() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void sleep(Time limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns early when a quick closure is decided, without sleeping.
  void look_for(const Closure& closure);
  bool run_errands() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void notify() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of those that wait as many as there are closures, while there are some.
  void wake_takers();

  const size_t capacity_;

  mutable Mutex mutex_;
  CondVar changed_;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<ClosurePtr> queued_ ABSL_GUARDED_BY(mutex_);
  size_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);   // to be raised
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);  // raised always
  std::deque<std::shared_ptr<ClosureTaker>> takers_ ABSL_GUARDED_BY(mutex_);
  struct Errand {
    ClosurePtr closure;
    Work work;
  };
  std::deque<Errand> errands_ ABSL_GUARDED_BY(mutex_);
  // What those who take have not heard of.
  size_t unannounced_ ABSL_GUARDED_BY(mutex_) = 0;
  Duration unannounced_time_ ABSL_GUARDED_BY(mutex_) = {};
  Time last_put_ ABSL_GUARDED_BY(mutex_) = {};
  bool will_announce_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::pair<Time, ClosurePtr>> deadlines_ ABSL_GUARDED_BY(mutex_);  // of those not decided
  std::optional<Time> expiry_ ABSL_GUARDED_BY(mutex_);  // that a caller was told
  DecidedSequences sequences_ ABSL_GUARDED_BY(mutex_);
  uint64_t decided_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace trireme::internal
