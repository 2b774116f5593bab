#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>

#include "trireme/base/clock.h"

namespace trireme {

// Returns how many times as long a computation takes now as it would with a core of its own: the
// elapsed time of a short one divided by its processor time, the highest of five such ratios. On a
// quiet machine that is 1, and about 2 if another process competes for each core. A test multiplies
// its time limits by it, so that it checks the limit on a quiet machine and still passes beside
// other load.
inline double slowdown() {
  const auto processor_seconds = [] {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
  };
  // The scheduler favours a thread that has slept, so the first of them may have a core to itself.
  double highest = 1;
  for (int i = 0; i < 5; ++i) {
    const Time began = Clock::real().now();
    const double before = processor_seconds();
    double used = 0;
    while (used < 0.1) used = processor_seconds() - before;
    const std::chrono::duration<double> elapsed = Clock::real().now() - began;
    highest = std::max(highest, elapsed.count() / used);
  }
  return highest;
}

}  // namespace trireme
