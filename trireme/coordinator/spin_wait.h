#pragma once

#include <chrono>
#include <thread>

#include "trireme/base/clock.h"

namespace trireme::internal {

// Spinning: a thread that waits for a short event polls for it rather than sleeps, because waking a
// thread takes as long as the event itself.

// Time for which a thread spins before it sleeps.
inline constexpr Duration kSpinTime = std::chrono::microseconds(100);

// Returns true if an event that is estimated to take `expected` is worth spinning for.
inline bool is_worth_spinning(Duration expected) {
  return expected <= kSpinTime;
}

// Blocks until `done` returns true, or for kSpinTime. The caller must hold no lock.
template <typename Done>
void spin_until(const Done& done) {
  const Time limit = after(kSpinTime);
  while (!done() && Clock::real().now() < limit) std::this_thread::yield();
}

}  // namespace trireme::internal
