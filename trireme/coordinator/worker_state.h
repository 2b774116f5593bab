#pragma once

#include <cstdint>

#include "trireme/cluster/cluster_spec.h"

namespace trireme {

// What a coordinator knows of a worker.
struct WorkerState {
  TaskId task;
  bool up = false;              // it takes closures
  bool slow = false;            // much slower than the others
  uint64_t closures_done = 0;   // of all its lives
  uint64_t closures_there = 0;  // that it has now
  uint64_t losses = 0;          // how often it was lost
};

}  // namespace trireme
