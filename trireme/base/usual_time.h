#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "trireme/base/clock.h"

namespace trireme {

// How long something takes, by the last times that it was done: one slow time among many says
// little. Thread-safe.
class UsualTime {
 public:
  // What it takes before anything is known.
  explicit UsualTime(Duration first) : nanoseconds_(std::chrono::nanoseconds(first).count()) {}

  Duration get() const {
    return std::chrono::nanoseconds(nanoseconds_.load(std::memory_order_relaxed));
  }
  void note(Duration measured) {
    // An outlier of hours would be remembered for long.
    const std::chrono::nanoseconds held = std::min<Duration>(measured, std::chrono::seconds(1));
    const int64_t before = nanoseconds_.load(std::memory_order_relaxed), now = held.count();
    nanoseconds_.store((3 * before + now) / 4, std::memory_order_relaxed);
  }

 private:
  std::atomic<int64_t> nanoseconds_;
};

}  // namespace trireme
