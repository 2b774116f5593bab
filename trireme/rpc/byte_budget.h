#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/observe/metrics.h"

namespace trireme {

// How many bytes of calls a server works on at once. A call that finds no room waits in line; one
// that is larger than the whole budget is let in alone. Thread-safe.
class ByteBudget {
 public:
  // Counts those that had to wait.
  ByteBudget(uint64_t limit, Counter& waited) : limit_(limit), waited_(waited) {}

  // Calls back once, now or later, when there is room for a call of that many bytes. Returns its
  // place in the line; none: it was let in at once.
  std::optional<uint64_t> ask(uint64_t bytes, std::function<void()> let_in);
  // A call that waits no longer. False: it was let in, and is called back or has been.
  bool withdraw(uint64_t place);
  // The call of that many bytes is done with.
  void leave(uint64_t bytes);

 private:
  struct Waiting {
    uint64_t place;
    uint64_t bytes;
    std::function<void()> let_in;
  };

  bool has_room(uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return inside_ == 0 || (bytes <= limit_ && inside_ <= limit_ - bytes);
  }

  std::vector<std::function<void()>> take_those_with_room() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t limit_;
  Counter& waited_;
  Mutex mutex_;
  uint64_t inside_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_place_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);  // by their places
};

}  // namespace trireme
