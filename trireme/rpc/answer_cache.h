#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/rpc/limits.h"
#include "trireme/rpc/message.h"

namespace trireme::internal {

// Remembers the answers to requests that must be executed only once, so that a repetition gets the
// first answer. A request is identified by (caller, request id), and the ids of a caller count up.
// When an answer is dropped, the cache keeps the caller's highest dropped id: a request that is not
// newer, and whose answer is not there, is rejected rather than executed a second time.
//
// Thread-safe. Waiters run without the lock, on the thread that calls begin() or finish().
class AnswerCache {
 public:
  using Answer = absl::StatusOr<Message>;
  using Waiter = std::function<void(const Answer&)>;

  explicit AnswerCache(const AnswerLimits& limits, const Clock& clock = Clock::real())
      : limits_(limits), clock_(clock) {}

  enum class Found {
    kNew,         // the request must be executed, and finish() called with its answer
    kRepetition,  // the waiter is called with the first answer, at once or when there is one
  };

  // Registers a request. `peer` is the sender's name by its certificate, "" without one. Returns an
  // error if the request must be rejected: it is older than a dropped answer, the caller's earlier
  // requests came from another peer, or there are too many callers.
  absl::StatusOr<Found> begin(uint64_t caller, uint64_t request_id, const std::string& peer,
                              Waiter waiter);

  // Stores the answer of a request that begin() found new, and passes it to the waiters. CANCELLED
  // is not stored: it says that nothing was executed, so a repetition may be executed.
  void finish(uint64_t caller, uint64_t request_id, const Answer& answer);

  // Returns the number of stored answers.
  size_t answers() const;

 private:
  struct Entry {
    std::shared_ptr<const Answer> answer;  // null while the request is in flight
    std::vector<Waiter> waiters;           // repetitions that came in the meantime
  };
  struct Caller {
    std::string peer;
    uint64_t dropped = 0;  // highest id of a request whose answer was dropped
    Time used;             // time of the last request or answer
    absl::flat_hash_map<uint64_t, Entry> entries;  // by request id
  };
  struct Kept {
    uint64_t caller;
    uint64_t request_id;
    uint64_t bytes;
    Time since;  // time of the answer
  };

  // Drops the oldest answers until all limits are met.
  void drop_old(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets callers without entries whose last request is older than any stored answer.
  void forget_idle_callers(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const AnswerLimits limits_;
  const Clock& clock_;
  mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, Caller> callers_ ABSL_GUARDED_BY(mutex_);
  std::deque<Kept> kept_ ABSL_GUARDED_BY(mutex_);  // the stored answers, oldest first
  uint64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace trireme::internal
