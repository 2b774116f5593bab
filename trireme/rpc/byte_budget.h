#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/observe/metrics.h"

namespace trireme {

// Limits the bytes of requests that a server works on at once. A call that finds no room waits in a
// queue, first come, first served. A call that is larger than the whole budget is admitted once no
// other call holds a part of it. Thread-safe. Callbacks run without the lock, on the thread that
// admits them.
class ByteBudget {
 public:
  // `waited` counts the calls that had to wait. It must outlive the budget.
  ByteBudget(uint64_t limit, Counter& waited) : limit_(limit), waited_(waited) {}

  // Asks for room for a call of `bytes` and calls `on_admitted` once there is. Returns nullopt if
  // there was room at once; the callback has then run before the return. Otherwise returns the
  // call's place in the queue.
  std::optional<uint64_t> ask(uint64_t bytes, std::function<void()> on_admitted);
  // Takes a waiting call out of the queue. Returns false if it was admitted before: then its
  // callback has run or will run, and leave() is still due.
  bool withdraw(uint64_t place);
  // Returns the bytes of an admitted call to the budget, which may admit waiting calls.
  void leave(uint64_t bytes);

 private:
  struct Waiting {
    uint64_t place;
    uint64_t bytes;
    std::function<void()> on_admitted;
  };

  bool has_room(uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return inside_ == 0 || (bytes <= limit_ && inside_ <= limit_ - bytes);
  }

  // Admits calls from the front of the queue as far as there is room. Returns their callbacks,
  // which the caller runs after it has released the lock.
  std::vector<std::function<void()>> admit_waiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t limit_;
  Counter& waited_;
  Mutex mutex_;
  uint64_t inside_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of the admitted calls
  uint64_t last_place_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);  // in ascending order of their places
};

}  // namespace trireme
