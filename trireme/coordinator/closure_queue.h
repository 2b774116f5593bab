#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"
#include "trireme/coordinator/burst_announcer.h"
#include "trireme/coordinator/closure.h"
#include "trireme/coordinator/closure_deadlines.h"
#include "trireme/coordinator/closure_fence.h"
#include "trireme/coordinator/closure_taker.h"
#include "trireme/coordinator/decided_sequences.h"
#include "trireme/coordinator/deferred_captures.h"
#include "trireme/coordinator/fence_progress.h"
#include "trireme/coordinator/waiting_takers.h"
#include "trireme/ps/push_records.h"

namespace trireme::internal {

// Options of a ClosureQueue.
struct ClosureQueueOptions {
  // Keeps late updates away from variables; null if closures change no variables.
  std::shared_ptr<ClosureFence> fence = nullptr;
  // Time that closures in flight have to return after the first error, before it is raised without
  // them.
  Duration cancel_time = std::chrono::seconds(3);
  // Maximum distance from the watermark to the last sequence. A closure that is not decided holds
  // the watermark, and servers keep a record of each push above it. The default leaves room on a
  // shard for closures that push in four rounds, or for four coordinators.
  uint64_t most_open = PushRecords::kMostChunks * PushRecords::kChunk / 4;
};

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
// caller has seen the error. Until it is raised, no closure can be put. A closure that does not
// return in time, because its worker is inside of a long operator or waits for a server, is
// abandoned: it counts as cancelled, and the error is raised without it.
//
// When a call has returned an error, or join() or done() has returned success, no update of an
// earlier closure is applied any more, not even by workers that are cut off: these calls wait for a
// fence (closure_fence.h) if one is needed. They accept one that is not confirmed, so that they do
// not wait for a frozen server.
//
// A pause (closure_pause.h) holds the queue at a point where no closure is under way. Meanwhile
// closures that were not begun are held apart from those that may be taken.
//
// Thread-safe; one lock guards all members.
class ClosureQueue : public std::enable_shared_from_this<ClosureQueue> {
 public:
  explicit ClosureQueue(size_t capacity, ClosureQueueOptions options = {})
      : capacity_(capacity), options_(std::move(options)) {}

  // Returns OK if no error is pending. Otherwise blocks until no closure is in flight and returns
  // the error. Called before a closure is made.
  absl::Status admit();
  // Queues the closure and sets its sequence, or returns the pending error. Blocks while the queue
  // is full, or while too many later closures are decided before the oldest one is. put_back() does
  // not block, so that a full queue never waits for itself.
  absl::Status put(const ClosurePtr& closure);
  // Default limits of a batch. The time is that of a few round trips to a worker: long enough that
  // the round trip costs little, and so short that few closures are requeued when a worker is lost.
  static constexpr Duration kBatchTime = std::chrono::milliseconds(1);
  static constexpr size_t kBatchClosures = 64;
  // Takes closures from the front of the queue: at least one, and as many as keep a worker busy for
  // about `lasting`, by their estimated costs. Skips closures that avoid the taker's worker.
  // Returns none if there are no others; the taker is then notified once there are.
  std::vector<ClosurePtr> take(const std::shared_ptr<ClosureTaker>& taker,
                               Duration lasting = kBatchTime, size_t most = kBatchClosures);
  // Requeues closures before those that were put after them. They may have pushed updates.
  void put_back(const std::vector<ClosurePtr>& closures) { requeue(closures, true); }
  // Does the same with closures whose worker has answered that it pushed nothing for them.
  void put_back_unpushed(const std::vector<ClosurePtr>& closures) { requeue(closures, false); }
  // Requeues closures that failed on `worker` because it could not use a parameter server. Other
  // workers take them until `until`, if any is connected.
  void put_back_elsewhere(const std::vector<ClosurePtr>& closures, int worker, Time until);
  // Note that a worker is connected, or is not connected any more. A closure that avoids all
  // connected workers may run on any of them.
  void add_worker(int worker);
  void remove_worker(int worker);
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
  size_t undecided() const {
    MutexLock lock(mutex_);
    return left();
  }
  // Returns true if no closure is queued or in flight. If there is a pending error then, returns
  // that instead. Does not block: returns false while a fence is not complete.
  absl::StatusOr<bool> done();
  // Blocks until the closure is decided and returns its result. An error is returned once no update
  // of an earlier closure is applied any more.
  ClosureResult fetch(const Closure& closure);
  // Returns true if the closure is decided and fetch() does not block.
  bool is_decided(const Closure& closure) const;
  // Returns the error that the queue was closed with, or OK while it is open.
  absl::Status status() const {
    MutexLock lock(mutex_);
    return closed_;
  }
  // Returns true if the closures, which are in flight, must not be sent to a worker any more: an
  // error is pending, the queue is closed, or one of them was abandoned. put_back() cancels the
  // ones that will not run.
  bool is_given_up(const std::vector<ClosurePtr>& closures) const;

  // Returns the sequence below which all closures are decided.
  uint64_t watermark() const {
    MutexLock lock(mutex_);
    return sequences_.watermark();
  }

  // The steps of a pause, which pause_closures() takes (closure_pause.h). All but end_pause()
  // return the pending error if there is one, without raising it, or the error of close().
  //
  // Holds back the queued closures, except those that may have pushed updates. Blocks while another
  // pause lasts; returns DEADLINE_EXCEEDED at `limit`.
  absl::Status begin_pause(Time limit);
  // Blocks until no closure is in flight and none is queued that may have pushed updates. Returns
  // false at `until`.
  absl::StatusOr<bool> drain(Time until);
  // Returns the sequence below which all closures are decided, once the queue is drained. Closures
  // that are held back and have a sequence below an unsettled one get a new sequence, so that a
  // fence can be raised above the unsettled one.
  uint64_t cut();
  // Raises a fence below `below`, unless the last one is the same and not complete yet. Does not
  // block.
  void begin_confirmation(uint64_t below);
  // Blocks until the last fence of begin_confirmation() is complete, or until `until`. Returns true
  // if all servers have confirmed it.
  absl::StatusOr<bool> confirmed(Time until);
  // Returns the servers that have not confirmed the last fence of begin_confirmation().
  std::vector<std::string> unconfirmed() const;
  // Lets closures be taken again.
  void end_pause();

 private:
  // Closures that will not run any more. Destroying the list releases the user's objects that they
  // hold, which runs code of the user. So a list is destroyed after the lock is released.
  struct Released {
    ~Released() {
      for (const ClosurePtr& closure : closures) closure->release();
    }
    std::vector<ClosurePtr> closures;
  };

  // Returns the number of closures that wait to be taken.
  size_t waiting() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return queued_.size() + held_.size();
  }
  // Returns the number of closures that wait to be taken or are in flight.
  size_t left() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return waiting() + in_flight_; }
  bool idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return left() == 0; }
  void requeue(const std::vector<ClosurePtr>& closures, bool may_have_pushed);
  static void insert_in_order(const ClosurePtr& closure, std::deque<ClosurePtr>& into);
  // Returns the error of close(), or the pending error, which stays pending.
  const absl::Status& failure() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_.ok() ? error_ : closed_;
  }
  // Returns true if put() has to wait before it can queue the closure.
  bool is_full(const Closure& closure) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns true while an error is pending that cannot be raised yet, because closures are in
  // flight or a fence is not complete.
  bool is_settling() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!closed_.ok()) return fences_.is_pending();
    return !error_.ok() && (in_flight_ > 0 || fences_.is_pending());
  }
  // Returns true if fetch() can return: the closure has a result or the queue is closed, and if
  // that is an error, no fence is pending.
  bool is_ready(const Closure& closure) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the error to raise, or OK. The error of a closure is raised once.
  absl::Status take_error() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the time at which the closures in flight are abandoned; Time::max() if no error waits
  // for them alone.
  Time abandon_time() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Abandons the closures in flight if it is time. Returns false if there was nothing to do.
  bool abandon_late() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool is_abandoned(const Closure& closure) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closure.sequence < abandoned_below_;
  }
  // Notes that a closure is not in flight any more. Returns false if it was abandoned, after
  // cancelling it.
  bool land(const ClosurePtr& closure, Released& released) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Cancels a closure that is neither queued nor in flight.
  void cancel(const ClosurePtr& closure, Released& released) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sets the result of the closure. Returns false if it was decided before.
  bool decide(const ClosurePtr& closure, ClosureResult result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Records the error of a closure, unless an error is pending. Returns the same as finish().
  uint64_t fail(const absl::Status& error, Released& released)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void cancel_queued(Released& released) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Notes that updates of the closure may be under way although it is not in flight any more.
  void note_unsettled(const Closure& closure) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    fences_.note_unsettled(closure.sequence + closure.repeat);
  }
  // Returns true if the error of a closure that is being cancelled says that a server, not the
  // worker itself, has rejected its updates.
  bool is_fenced(const Closure& closure, const absl::Status& error) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Raises the fence that is wanted, unless there is none or another thread has raised it. Does not
  // block.
  void raise_fence();

  // Announces unannounced closures, runs deferred captures, and raises a fence that is wanted. If
  // there was none of these, sleeps until something changes.
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
  const ClosureQueueOptions options_;

  mutable Mutex mutex_;
  CondVar changed_;
  int sleeping_ ABSL_GUARDED_BY(mutex_) = 0;  // Number of threads that wait for changed_.
  std::deque<ClosurePtr> queued_ ABSL_GUARDED_BY(mutex_);
  std::deque<ClosurePtr> held_ ABSL_GUARDED_BY(mutex_);  // Not to be taken before end_pause().
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;  // True from begin_pause() until end_pause().
  // Number of fences of begin_confirmation(), and the last of these that is complete.
  uint64_t confirmations_ ABSL_GUARDED_BY(mutex_) = 0, last_complete_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t confirmed_below_ ABSL_GUARDED_BY(mutex_) = 0;  // Sequence of the last such fence.
  // Servers that did not confirm fence `last_complete_`.
  std::vector<std::string> unconfirmed_ ABSL_GUARDED_BY(mutex_);
  size_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);   // Pending error, to be raised once.
  Time failed_at_ ABSL_GUARDED_BY(mutex_);       // Time of the pending error.
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);  // Error of every call since close().
  WaitingTakers takers_ ABSL_GUARDED_BY(mutex_);
  BurstAnnouncer announcer_ ABSL_GUARDED_BY(mutex_) = BurstAnnouncer(kBatchClosures, kBatchTime);
  DeferredCaptures captures_ ABSL_GUARDED_BY(mutex_);
  ClosureDeadlines deadlines_ ABSL_GUARDED_BY(mutex_);
  DecidedSequences sequences_ ABSL_GUARDED_BY(mutex_);
  uint64_t puts_ ABSL_GUARDED_BY(mutex_) = 0;     // Number of closures put so far.
  uint64_t decided_ ABSL_GUARDED_BY(mutex_) = 0;  // Number of closures decided so far.
  // Watermark at which put() last logged that it waits for the oldest closure.
  uint64_t logged_watermark_ ABSL_GUARDED_BY(mutex_) = 0;
  FenceProgress fences_ ABSL_GUARDED_BY(mutex_);
  // Closures with a sequence below it that are not decided were abandoned.
  uint64_t abandoned_below_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace trireme::internal
