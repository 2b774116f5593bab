#pragma once

#include "trireme/base/clock.h"
#include "trireme/base/executor.h"

namespace trireme::internal {

// Runs the work once, at that time, on a thread that serves many calls: it must not block. There is
// no cancelling: who may not be needed by then holds what tells so.
void run_at(Time time, Work work);

}  // namespace trireme::internal
