#pragma once

#include <cstdint>
#include <optional>

#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"

namespace trireme {

// Keeps something that others can provoke, such as a line of the log, from being done too often: at
// most `count` times in each period. Thread-safe.
class RateLimit {
 public:
  RateLimit(int count, Duration period, const Clock& clock = Clock::real())
      : count_(count), period_(period), clock_(clock) {}

  // Nothing when it is too often. Else how many times that was so since it last was not.
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
