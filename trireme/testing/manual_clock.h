#pragma once

#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"

namespace trireme {

// A clock that moves only when the test advances it. Thread-safe.
class ManualClock final : public Clock {
 public:
  Time now() const override {
    MutexLock lock(mutex_);
    return now_;
  }

  void advance(Duration duration) {
    MutexLock lock(mutex_);
    now_ += duration;
  }

 private:
  mutable Mutex mutex_;
  Time now_ ABSL_GUARDED_BY(mutex_) = Time(std::chrono::hours(1));
};

}  // namespace trireme
