#include "cli/restart_policy.h"

#include <signal.h>

#include <algorithm>

namespace trireme {
namespace {

bool is_failure(const ExitStatus& status) {
  if (status.signal != 0) return status.signal != SIGKILL && status.signal != SIGTERM;
  return status.code != 0 && status.code != 128 + SIGTERM;
}

}  // namespace

std::optional<Duration> RestartPolicy::next_delay(const ExitStatus& status, Duration life) {
  if (life >= kLongLife) delays_ = failures_ = 0;
  if (is_failure(status) && ++failures_ >= kMostFailures) return std::nullopt;
  delays_ = std::clamp(2 * delays_, 1, kMostDelay);
  return delays_ * first_delay_;
}

}  // namespace trireme
