#pragma once

#include <functional>
#include <stop_token>

#include "trireme/base/clock.h"

namespace trireme {

// How a call is repeated when it may have been lost: nobody was reached, the connection broke, or
// nothing was heard for attempt_time (CallOptions::first_word). Every method may be retried: what
// may not be done twice, the server does once and answers repetitions as it did the first (Repeats
// in rpc/service.h). Errors that the server made itself are answers and end the call.
struct RetryPolicy {
  Duration attempt_time = std::chrono::seconds(10);
  Duration first_delay = std::chrono::milliseconds(50);
  Duration longest_delay = std::chrono::seconds(5);
  double growth = 2;
  // Gives up when nobody could be reached for so long; 0: tries until the deadline.
  Duration unreachable_time = Duration::zero();

  // Before the attempt with this number, of which the first is 1: grown, at most the longest, and
  // then anything from half of it to all of it, so that callers who failed together do not come
  // back together.
  Duration delay_before(int attempt) const;
};

}  // namespace trireme
