#pragma once

#include <optional>

#include "trireme/base/clock.h"
#include "trireme/base/subprocess.h"

namespace trireme {

// Decides when a task that has ended is started again: after a delay, which doubles from one short
// life to the next. A task that fails by itself again and again is given up. Not thread-safe.
class RestartPolicy {
 public:
  // A task that has run for this long begins anew with the first delay.
  static constexpr auto kLongLife = std::chrono::minutes(1);
  // Longest delay, as a multiple of the first one.
  static constexpr int kMostDelay = 30;
  // Number of failures, each after a short life, with which a task is given up.
  static constexpr int kMostFailures = 10;

  explicit RestartPolicy(Duration first_delay) : first_delay_(first_delay) {}

  // Returns the time to wait before the next start of a task that has run for `life` and ended like
  // this, or nullopt if it is given up. Only exits with a code other than 0 and 143, and signals of
  // a crash, are failures: SIGKILL and SIGTERM come from outside, and a program exits with 143 when
  // SIGTERM has asked it to save.
  std::optional<Duration> next_delay(const ExitStatus& status, Duration life);

 private:
  const Duration first_delay_;
  int delays_ = 0;  // Multiple of the first delay that was returned last; 0 before the first.
  int failures_ = 0;
};

}  // namespace trireme
