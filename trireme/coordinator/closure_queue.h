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
#include "trireme/coordinator/burst_announcer.h"
#include "trireme/coordinator/closure.h"
#include "trireme/coordinator/closure_taker.h"
#include "trireme/coordinator/decided_sequences.h"
#include "trireme/coordinator/deferred_captures.h"

namespace trireme::internal {

// Holds the closures of a coordinator from when they are scheduled until they are decided:
//
//   put -> queued -> take -> in flight -> finish -> decided
//             ^                  |
//             +---- put_back ----+      when its worker is lost
//
// A closure is decided once it has a result: it succeeded, failed or was cancelled. Short closures
// of a burst are announced to the takers together (burst_announcer.h). Threads of the user that
// wait here run deferred captures meanwhile (deferred_captures.h).
//
// The first error of a closure cancels all others. It is raised once, when no closure is in flight
// any more, so that closures scheduled before the error do not run on connected workers after a
// caller has seen the error. Until it is raised, no closure can be put. Thread-safe; one lock
// guards all members.
class ClosureQueue : public std::enable_shared_from_this<ClosureQueue> {
 public:
  explicit ClosureQueue(size_t capacity) : capacity_(capacity) {}

  // Returns OK if no error is pending. Otherwise blocks until no closure is in flight and returns
  // the error. Called before a closure is made.
  absl::Status admit();
  // Queues the closure and sets its sequence, or returns the pending error. Blocks while the queue
  // is full. put_back() does not block, so that a full queue never waits for itself.
  absl::Status put(const ClosurePtr& closure);
  // Default limits of a batch. The time is that of a few round trips to a worker: long enough that
  // the round trip costs little, and so short that few closures are requeued when a worker is lost.
  static constexpr Duration kBatchTime = std::chrono::milliseconds(1);
  static constexpr size_t kBatchClosures = 64;
  // Takes closures from the front of the queue: at least one, and as many as keep a worker busy for
  // about `lasting`, by their estimated costs. Returns none if none is queued; the taker is then
  // notified once closures are queued.
  std::vector<ClosurePtr> take(const std::shared_ptr<ClosureTaker>& taker,
                               Duration lasting = kBatchTime, size_t most = kBatchClosures);
  // Requeues closures at the front, since they are the oldest.
  void put_back(const std::vector<ClosurePtr>& closures);
  struct Finished {
    ClosurePtr closure;
    ClosureResult result;
  };
  // Decides closures that were in flight. If one of them failed with the first error, returns the
  // sequence below which all closures in flight should be cancelled. Otherwise returns 0.
  [[nodiscard]] uint64_t finish(std::vector<Finished> finished);
  // Fails the closures whose deadline has passed. Returns the same as finish().
  [[nodiscard]] uint64_t expire(Time now);
  // Returns the time at which to call expire() next, or nullopt if no closure has a deadline or an
  // earlier call has returned this time.
  std::optional<Time> next_expiry();
  // Cancels all closures; every later call returns the error `why`.
  void close(const absl::Status& why);

  // Defers `capture`, which repeats the capture of the function of a closure in flight, to the next
  // thread of the user that calls admit() or done(), or waits in the queue. Cancels the closure
  // instead if the queue is closed by then.
  void defer_capture(const ClosurePtr& closure, Work capture);

  // Blocks until no closure is queued or in flight, and returns the pending error. Returns
  // DEADLINE_EXCEEDED at `limit`; the closures keep running. Calls `progress`, unless it is null,
  // at intervals of `every` with the number of closures that are decided and that are left.
  absl::Status join(Time limit = Time::max(), Duration every = Duration::max(),
                    const std::function<void(uint64_t done, uint64_t left)>& progress = nullptr);
  // Returns the number of closures that are queued or in flight.
  size_t undecided() const;
  // Returns true if no closure is queued or in flight. If there is a pending error then, returns
  // that instead.
  absl::StatusOr<bool> done();
  // Blocks until the closure is decided and returns its result.
  ClosureResult fetch(const Closure& closure);
  bool is_decided(const Closure& closure) const;
  // Returns the error that the queue was closed with, or OK while it is open.
  absl::Status status() const;
  // Returns true while closures are cancelled: an error is pending or the queue is closed.
  bool cancels() const;

  // Returns the sequence below which all closures are decided.
  uint64_t watermark() const;

 private:
  bool idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return queued_.empty() && in_flight_ == 0;
  }
  // Sets the result of the closure. Returns false if it was decided before.
  bool decide(const ClosurePtr& closure, ClosureResult result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Records the error of a closure, unless an error is pending. Returns the same as finish().
  uint64_t fail(const absl::Status& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void cancel_queued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Announces unannounced closures and runs deferred captures. If there were neither, sleeps until
  // something changes.
  void wait(Time limit = Time::max()) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void sleep(Time limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Spins for a short time if the closure is a quick one. Returns early when it is decided.
  void spin_for(const Closure& closure);
  // Starts the timer that announces the rest of a burst, unless it runs or no taker waits.
  void announce_later() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void notify() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Notifies waiting takers, at most one for each queued closure.
  void wake_takers();

  const size_t capacity_;

  mutable Mutex mutex_;
  CondVar changed_;
  int sleeping_ ABSL_GUARDED_BY(mutex_) = 0;  // Number of threads that wait for changed_.
  std::deque<ClosurePtr> queued_ ABSL_GUARDED_BY(mutex_);
  size_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);   // Pending error, to be raised once.
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);  // Error of every call since close().
  // Takers that found no closure and wait to be notified.
  std::deque<std::shared_ptr<ClosureTaker>> takers_ ABSL_GUARDED_BY(mutex_);
  BurstAnnouncer announcer_ ABSL_GUARDED_BY(mutex_) = BurstAnnouncer(kBatchClosures, kBatchTime);
  DeferredCaptures captures_ ABSL_GUARDED_BY(mutex_);
  // Deadlines of closures that are not decided.
  std::set<std::pair<Time, ClosurePtr>> deadlines_ ABSL_GUARDED_BY(mutex_);
  std::optional<Time> expiry_ ABSL_GUARDED_BY(mutex_);  // Last result of next_expiry().
  DecidedSequences sequences_ ABSL_GUARDED_BY(mutex_);
  uint64_t decided_ ABSL_GUARDED_BY(mutex_) = 0;  // Number of closures decided so far.
};

}  // namespace trireme::internal
