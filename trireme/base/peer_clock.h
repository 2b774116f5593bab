#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "trireme/base/clock.h"

namespace trireme {

// Converts between a time of this process and its number on the wire. The epoch is that of the
// sender's monotonic clock, so such numbers have a meaning only for the process that made them. A
// number that a peer sent is clamped to between 0 and `latest`.
inline int64_t to_clock_milliseconds(Time time) {
  return std::chrono::floor<std::chrono::milliseconds>(time.time_since_epoch()).count();
}
inline Time from_clock_milliseconds(int64_t milliseconds, Time latest = Time::max()) {
  return Time(std::chrono::milliseconds(
      std::clamp<int64_t>(milliseconds, 0, to_clock_milliseconds(latest))));
}

// Estimates the clock of another process from its answers, which carry what the clock showed.
//
// The clock showed that number before the answer arrived. So at a later time t of this process it
// shows at least that number plus the time since the arrival. Only the last answer is used, because
// the clocks of two machines drift apart by seconds within a day. Not thread-safe.
class PeerClock {
 public:
  // Notes an answer that arrived at `received` and carries the peer's clock.
  void note_answer(Time received, int64_t peer_milliseconds) {
    // One more, because both numbers were rounded down.
    offset_ = peer_milliseconds - (to_clock_milliseconds(received) + 1);
    known_ = true;
  }
  // Returns true once an answer was noted.
  bool known() const { return known_; }

  // Returns a lower bound of the number that the peer's clock shows at `time` of this process. An
  // answer must have been noted.
  int64_t at(Time time) const { return to_clock_milliseconds(time) + offset_; }

 private:
  int64_t offset_ = 0;  // Lower bound of the peer's clock minus that of this process.
  bool known_ = false;
};

}  // namespace trireme
