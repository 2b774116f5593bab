#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace trireme {

// All waiting and all deadlines are on the monotonic clock: a moved wall clock changes nothing.
using Duration = std::chrono::steady_clock::duration;
using Time = std::chrono::steady_clock::time_point;

// A source of time that tests may replace (testing/manual_clock.h). Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time now() const = 0;

  static Clock& real();
};

inline Time after(Duration duration) {
  return std::chrono::steady_clock::now() + duration;
}

// How times travel between machines: as milliseconds from now. What arrives is held to a day.
int64_t milliseconds_until(Time time);
Time after_milliseconds(int64_t milliseconds);

// A duration as people write it: "2m 5s", "1.5s", "320ms".
std::string format_duration(Duration duration);

}  // namespace trireme
