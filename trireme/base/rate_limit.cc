#include "trireme/base/rate_limit.h"

#include <utility>

namespace trireme {

std::optional<int64_t> RateLimit::admit() {
  MutexLock lock(mutex_);
  const Time now = clock_.now();
  if (now - period_start_ >= period_) {
    period_start_ = now;
    admitted_ = 0;
  }
  if (admitted_ >= count_) {
    ++suppressed_;
    return std::nullopt;
  }
  ++admitted_;
  return std::exchange(suppressed_, 0);
}

}  // namespace trireme
