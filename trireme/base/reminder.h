#pragma once

#include <algorithm>
#include <chrono>

#include "trireme/base/clock.h"

namespace trireme {

// Tells when a wait has become so long that its reason should be logged: after a few seconds, and
// then at intervals that double, up to ten minutes. Not thread-safe.
class Reminder {
 public:
  // Returns the time of the next log line.
  Time next() const { return next_; }

  // Returns true if that time has come, and begins the next interval.
  bool is_due() {
    if (Clock::real().now() < next_) return false;
    interval_ = std::min<Duration>(2 * interval_, std::chrono::minutes(10));
    next_ = after(interval_);
    return true;
  }

 private:
  Duration interval_ = std::chrono::seconds(5);
  Time next_ = after(interval_);
};

}  // namespace trireme
