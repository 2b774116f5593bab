#pragma once

#include "trireme/base/clock.h"
#include "trireme/base/executor.h"

namespace trireme::internal {

// Runs `work` once, at `time`, on a thread that serves the whole process, so it must not block.
// Cannot be cancelled; the work must check that it still applies.
void run_at(Time time, Work work);
// Blocks until `time`.
void block_until(Time time);

}  // namespace trireme::internal
