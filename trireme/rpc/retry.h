#pragma once

#include <functional>
#include <stop_token>

#include "trireme/base/clock.h"

namespace trireme {

// Decides when a call is retried. A call is retried if it may have been lost: the server was not
// reached, the connection broke, or no frame arrived within attempt_time
// (CallOptions::first_frame_deadline). Every method may be retried: a server executes a request
// only once if twice would do harm (Repeats in rpc/service.h). An error that the server itself
// returns ends the call, except UNAVAILABLE, with which a server asks to be called again.
struct RetryPolicy {
  Duration attempt_time = std::chrono::seconds(10);      // time for the first frame of an attempt
  Duration first_delay = std::chrono::milliseconds(50);  // delay before the second attempt
  Duration longest_delay = std::chrono::seconds(5);      // upper limit of the delay
  double growth = 2;                                     // factor from one delay to the next
  // Time for which the server may be unreachable before the call gives up; 0 to retry until the
  // call's deadline.
  Duration unreachable_time = Duration::zero();

  // Returns the delay before an attempt. Attempts are counted from 1. Backs off exponentially up to
  // longest_delay, and picks a random part, from half to all of it, so that callers which failed
  // together do not return together.
  Duration delay_before(int attempt) const;
};

}  // namespace trireme
