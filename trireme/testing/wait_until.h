#pragma once

#include <chrono>
#include <thread>

#include "trireme/base/clock.h"

namespace trireme {

// Blocks until `holds` returns true. Returns false if it has not done so after `timeout`.
template <typename Condition>
bool wait_until(const Condition& holds, Duration timeout) {
  const Time limit = after(timeout);
  while (!holds()) {
    if (Clock::real().now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace trireme
