#pragma once

#include <algorithm>
#include <optional>

#include "trireme/base/clock.h"

namespace trireme::internal {

// The back-off of a worker that cannot use a parameter server. While it backs off, the worker gets
// no closures. After that it gets one at a time, as a trial, until one has succeeded. The back-off
// doubles with each trial that fails, but stays so short that the only worker of a job goes on soon
// after its route was healed. Not thread-safe.
class RouteBackoff {
 public:
  static constexpr Duration kFirst = std::chrono::milliseconds(500);
  static constexpr Duration kLongest = std::chrono::seconds(8);

  // Notes that closures failed on the worker for want of a server, and returns the end of the
  // back-off that begins. Returns nullopt if the worker backs off already: these closures were sent
  // before.
  std::optional<Time> note_failure(Time now) {
    if (backs_off(now)) return std::nullopt;
    duration_ = on_trial_ ? std::min(duration_ * 2, kLongest) : kFirst;
    on_trial_ = true;
    return until_ = now + duration_;
  }
  // Notes that a closure succeeded, or that the worker was replaced.
  void reset() { on_trial_ = false; }

  // Returns true while the worker gets no closures.
  bool backs_off(Time now) const { return on_trial_ && now < until_; }
  // Returns true if no closure has succeeded since the last failure.
  bool on_trial() const { return on_trial_; }

 private:
  bool on_trial_ = false;
  Duration duration_ = {};
  Time until_;
};

}  // namespace trireme::internal
