#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"

// Branches of a graph that run at once. A lane is a thread of a run: lane 0 is the thread that
// asked for it, the others are helpers. Each lane has its operators in captured order and waits
// where it needs what another lane makes.
//
// An operator that writes in place is a fence: all before it has ended, and nothing after it has
// begun. So no operator ever runs beside a write, whatever shares memory with what, and the result
// is bit for bit that of the captured order. Random operators stay on lane 0, in order.
namespace trireme::internal {

struct Plan;

struct BranchStep {
  uint32_t node;
  // Other lanes, and how many of their steps must have ended.
  std::vector<std::pair<int, uint32_t>> waits;
  std::vector<uint32_t> frees;     // values that no step after this one uses
  std::vector<uint32_t> releases;  // values that other lanes use too: the last of them frees
};

struct BranchSchedule {
  std::vector<std::vector<BranchStep>> lanes;
  std::vector<uint32_t> released_by;  // per value, how many lanes release it
  double serial_seconds = 0;          // in captured order, as measured
  double seconds = 0;                 // in branches, as predicted
};

// `seconds` has the cost of each of the plan's nodes.
BranchSchedule schedule_branches(const Plan& plan, const std::vector<double>& seconds, int lanes);

// Runs every step of the schedule once. If steps fail, the error is that of the first in captured
// order, as if they had run in that order. False, with nothing run, when another run has the
// helpers: its cores are not idle then.
bool run_branches(const BranchSchedule& schedule,
                  const std::function<absl::Status(int lane, const BranchStep&)>& run_step,
                  absl::Status* status);

}  // namespace trireme::internal
