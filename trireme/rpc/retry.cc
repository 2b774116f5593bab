#include "trireme/rpc/retry.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace trireme {

Duration RetryPolicy::delay_before(int attempt) const {
  if (attempt <= 1) return Duration::zero();
  thread_local std::minstd_rand random{std::random_device()()};
  const double grown = static_cast<double>(first_delay.count()) * std::pow(growth, attempt - 2);
  const double capped = std::min(grown, static_cast<double>(longest_delay.count()));
  return Duration(static_cast<Duration::rep>(
      capped * std::uniform_real_distribution<double>(0.5, 1.0)(random)));
}

}  // namespace trireme
