#pragma once

#include "trireme/base/executor.h"

namespace trireme::internal {

// Declares that the calling thread handles answers or timers of the whole process, so that nothing
// may block on it.
void declare_serving_thread();

// Runs `work`, which may block: at once, or later on another thread if the calling one serves the
// whole process. For destructors that wait for answers, since a callback may hold the last
// reference to an object. The process waits for such work when it ends, for five seconds at most.
void run_blocking(Work work);

}  // namespace trireme::internal
