#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace trireme {

// All waits and deadlines use the monotonic clock, so a change of the wall clock does not affect
// them.
using Duration = std::chrono::steady_clock::duration;
using Time = std::chrono::steady_clock::time_point;

// A source of time that tests may replace (testing/manual_clock.h). Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time now() const = 0;

  // Returns the monotonic clock of the system.
  static Clock& real();
};

// Returns the time that is `duration` from now, on the real clock.
inline Time after(Duration duration) {
  return std::chrono::steady_clock::now() + duration;
}

// Convert between a time and the milliseconds from now, which is how deadlines are sent to another
// machine. after_milliseconds() clamps what a peer sent to between 0 and one day.
int64_t milliseconds_until(Time time);
Time after_milliseconds(int64_t milliseconds);

// Formats a duration for people: "2m 5s", "1.5s", "320ms".
std::string format_duration(Duration duration);

}  // namespace trireme
