#pragma once

#include <chrono>
#include <thread>

#include "trireme/base/clock.h"

namespace trireme::internal {

// Spinning: a thread that waits for something short polls for it rather than sleeps, because to be
// woken takes as long as the thing itself.

// Time for which a thread spins before it sleeps.
inline constexpr Duration kSpinTime = std::chrono::microseconds(100);

// Returns true if something that is estimated to take `expected` is short enough to spin for.
inline bool is_worth_spinning(Duration expected) {
  return expected <= kSpinTime;
}

// Returns when `done` returns true, or after kSpinTime. The caller holds no lock.
template <typename Done>
void spin_until(const Done& done) {
  const Time limit = after(kSpinTime);
  while (!done() && Clock::real().now() < limit) std::this_thread::yield();
}

}  // namespace trireme::internal
