#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "trireme/base/clock.h"

namespace trireme {

// Estimates how long a repeated operation takes, as a moving average of the measured times. A
// single slow run changes it little. Thread-safe; one of two concurrent updates may be lost.
class AverageDuration {
 public:
  // `first` is the estimate before the first measurement.
  explicit AverageDuration(Duration first)
      : nanoseconds_(std::chrono::nanoseconds(first).count()) {}

  Duration get() const {
    return std::chrono::nanoseconds(nanoseconds_.load(std::memory_order_relaxed));
  }
  void note(Duration measured) {
    // Cap the measurement: an outlier of hours would dominate the average for a long time.
    const std::chrono::nanoseconds held = std::min<Duration>(measured, std::chrono::seconds(1));
    const int64_t before = nanoseconds_.load(std::memory_order_relaxed), now = held.count();
    nanoseconds_.store((3 * before + now) / 4, std::memory_order_relaxed);
  }

 private:
  std::atomic<int64_t> nanoseconds_;
};

}  // namespace trireme
