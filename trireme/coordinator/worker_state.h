#pragma once

#include <cstdint>

#include "trireme/cluster/cluster_spec.h"

namespace trireme {

// State of a worker, as its coordinator sees it.
struct WorkerState {
  TaskId task;        // The worker.
  bool up = false;    // True while it is connected and gets closures.
  bool slow = false;  // True while it is much slower than the other workers.
  // Number of closures that it has finished, including failed ones. Restarts of the worker do not
  // reset it.
  uint64_t closures_done = 0;
  uint64_t closures_there = 0;  // Number of closures that it has been given and not finished.
  uint64_t losses = 0;          // Number of times that its connection was lost.
};

}  // namespace trireme
