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

// The answers that a server gave to requests that may be done only once, so that a repetition gets
// the first answer. A request is (caller, request id); ids of a caller count up. An answer that was
// dropped leaves a mark: what is not newer is refused rather than done a second time. Thread-safe.
class AnswerCache {
 public:
  using Answer = absl::StatusOr<Message>;
  using Waiter = std::function<void(const Answer&)>;

  explicit AnswerCache(const AnswerLimits& limits, const Clock& clock = Clock::real())
      : limits_(limits), clock_(clock) {}

  enum class Found { kNew, kUnderWay };

  // kNew: the request has to be done, and finish() called. kUnderWay: the waiter is called with
  // the first answer, now or once it is there. An error: refused. The peer is who sent it, by its
  // certificate; a caller's requests come from one peer only.
  absl::StatusOr<Found> begin(uint64_t caller, uint64_t request_id, const std::string& peer,
                              Waiter waiter);

  // Keeps the answer and calls those who wait for it. CANCELLED is not kept: it says that nothing
  // was done, and a repetition may try again.
  void finish(uint64_t caller, uint64_t request_id, const Answer& answer);

  size_t answers() const;

 private:
  struct Entry {
    std::shared_ptr<const Answer> answer;  // none while it is under way
    std::vector<Waiter> waiters;
  };
  struct Caller {
    std::string peer;
    uint64_t dropped = 0;  // the newest request whose answer was dropped
    Time used;
    absl::flat_hash_map<uint64_t, Entry> entries;
  };
  struct Kept {
    uint64_t caller;
    uint64_t request_id;
    uint64_t bytes;
    Time since;
  };

  void drop_old(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void forget_idle_callers(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const AnswerLimits limits_;
  const Clock& clock_;
  mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, Caller> callers_ ABSL_GUARDED_BY(mutex_);
  std::deque<Kept> kept_ ABSL_GUARDED_BY(mutex_);  // the oldest first
  uint64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace trireme::internal
