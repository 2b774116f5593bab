#pragma once

#include <cstdint>
#include <optional>

#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"

namespace trireme {

// Admits at most `count` events in each period. Limits what a peer can provoke, such as log lines.
// Thread-safe. The clock must outlive it.
class RateLimit {
 public:
  RateLimit(int count, Duration period, const Clock& clock = Clock::real())
      : count_(count), period_(period), clock_(clock) {}

  // Returns nullopt if the limit is exceeded, otherwise the number of events suppressed since the
  // last admitted one.
  std::optional<int64_t> admit();

 private:
  const int count_;
  const Duration period_;
  const Clock& clock_;
  Mutex mutex_;
  Time period_start_ ABSL_GUARDED_BY(mutex_);
  int admitted_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t suppressed_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace trireme
