#pragma once

#include <chrono>
#include <cstddef>
#include <utility>

#include "trireme/base/clock.h"

namespace trireme::internal {

// Decides when the takers of a queue are notified of the closures that were put into it.
//
// Waking a taker and sending a message for each of many short closures would cost more than running
// them. The closures of a burst, which are put one right after another, are therefore announced
// together: the first at once, the others when there are enough for a batch, when the user begins
// to wait, or after a short delay. This class only decides; the queue wakes the takers and runs the
// timer. Reads no clock: times are passed in. Not thread-safe: guarded by the queue's lock.
class BurstAnnouncer {
 public:
  // A closure that is put sooner than this after the previous one belongs to the same burst.
  static constexpr Duration kBurstGap = std::chrono::microseconds(50);
  // Time after which the rest of a burst is announced, measured from schedule_delayed().
  static constexpr Duration kDelay = std::chrono::microseconds(200);

  // A batch is full once it has `batch_closures` closures, or closures that keep a worker busy for
  // `batch_time`.
  BurstAnnouncer(size_t batch_closures, Duration batch_time)
      : batch_closures_(batch_closures), batch_time_(batch_time) {}

  // Notes that a closure was put at `now`. The closure is estimated to keep a worker busy for
  // `cost`. Returns true if all unannounced closures, including this one, should be announced now.
  bool note_put(Time now, Duration cost) {
    const bool in_burst = now - std::exchange(last_put_, now) < kBurstGap;
    ++unannounced_;
    unannounced_cost_ += cost;
    return !in_burst || unannounced_ >= batch_closures_ || unannounced_cost_ >= batch_time_;
  }

  // Notes that takers have been notified of all queued closures, or that none is queued.
  void note_announced() {
    unannounced_ = 0;
    unannounced_cost_ = {};
  }

  // Returns true if there are closures of which no taker has been notified.
  bool has_unannounced() const { return unannounced_ > 0; }

  // Returns true if the caller has to announce after kDelay, or false if an earlier caller will do
  // so.
  bool schedule_delayed() { return !std::exchange(delayed_, true); }

  // Notes that the delay is over; the next call of schedule_delayed() returns true.
  void note_delay_over() { delayed_ = false; }

 private:
  const size_t batch_closures_;
  const Duration batch_time_;
  size_t unannounced_ = 0;          // Number of closures of which no taker has been notified.
  Duration unannounced_cost_ = {};  // Sum of their estimated costs.
  Time last_put_ = {};
  bool delayed_ = false;  // True while a delayed announcement is scheduled.
};

}  // namespace trireme::internal
