#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"

// Runs parts of a graph at the same time. A lane is one thread of a run: lane 0 is the thread that
// called run_branches(), the others are helpers. Each lane runs its operators in captured order and
// waits where it needs a result of another lane.
//
// schedule_branches() looks for independent branches. An operator that writes in place is a fence:
// everything before it has finished when it starts, and nothing after it starts before it has
// finished. So no operator ever runs at the same time as a write, whichever tensors share memory.
// Random operators stay on lane 0, in order. With the same number of threads on all lanes, the
// result is the same to the last bit as in captured order.
//
// schedule_lanes() is for replicas, whose lanes are known. An operator that writes waits only for
// the operators that use the same memory, and every lane may have random operators. The helpers
// share the threads of the process, and the number of threads decides how sums are split and
// thereby rounded. So a run that gets no helpers, and therefore runs in captured order with all
// threads, may differ in the last bits.
namespace trireme::internal {

struct Plan;

// One operator in a lane.
struct BranchStep {
  uint32_t node;
  // Lanes to wait for, with the number of their steps that must have finished.
  std::vector<std::pair<int, uint32_t>> waits;
  std::vector<uint32_t> frees;  // values to release after the step, which only this lane uses
  // Values of which this is the lane's last use, while other lanes use them too. The last lane to
  // get here releases the value.
  std::vector<uint32_t> releases;
};

// The operators of a plan, distributed over lanes. Immutable once made, so that many runs may share
// it.
struct BranchSchedule {
  std::vector<std::vector<BranchStep>> lanes;
  std::vector<uint32_t> release_count;  // for each value, the number of lanes with it in `releases`
  double serial_seconds = 0;            // measured time in captured order
  double seconds = 0;                   // predicted time in branches
};

// Distributes the nodes of a plan over `lanes` lanes, with fences. `seconds` has the time of each
// node.
BranchSchedule schedule_branches(const Plan& plan, const std::vector<double>& seconds, int lanes);

// Distributes the nodes of a plan over `lanes` lanes as `lane_of_node` says, without fences. Random
// operators of different lanes must not draw from the same generator.
BranchSchedule schedule_lanes(const Plan& plan, const std::vector<int>& lane_of_node, int lanes);

// Runs every step of the schedule once, by calling `run_step` from the lanes' threads. Blocks until
// all lanes are done, and sets `status`. If several steps fail, the error is that of the first one
// in captured order, as if they had run in that order.
//
// An operator may use `helper_threads` threads on the helpers; 0 stands for as many as the caller.
// The number stays the helpers' own. Throws std::system_error if a helper cannot be started.
//
// Returns false without running anything if another run has the helper threads: there are no idle
// cores then.
bool run_branches(const BranchSchedule& schedule,
                  const std::function<absl::Status(int lane, const BranchStep&)>& run_step,
                  absl::Status* status, int helper_threads = 0);

}  // namespace trireme::internal
