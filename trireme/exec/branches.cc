// Branches in three stages.
//
// Scheduling of branches. dependencies() finds the nodes that each node must wait for: the makers
// of its arguments, the last fence, and for a random operator the random operator before it.
// assign_lanes() is list scheduling in captured order: each node goes to the lane on which it can
// start first, given the measured times and the cost of handing a value from one thread to another.
// Fences and random operators always go to lane 0. add_waits() turns dependencies between lanes
// into waits, and leaves out those that an earlier wait of the lane already covers. Replicas have
// their lanes already, and memory_dependencies() instead of fences.
//
// Running. Each lane counts its finished steps in an atomic of Progress. A lane waits for another
// by waiting for its count: it spins for a moment, since most waits are short, and then sleeps on
// the atomic. A lane that stops, at its end or on a failure, sets its count to kEnded, so that no
// lane waits for it forever.
//
// Failing. Lanes skip the steps after the first failed node in captured order and finish the ones
// before it. So the error is the one that captured order would have met.
#include "trireme/exec/branches.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <set>

#include "absl/cleanup/cleanup.h"
#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"
#include "trireme/exec/current_streams.h"
#include "trireme/graph/operators.h"
#include "trireme/graph/plan.h"
#include "trireme/tensor/operator_threads.h"

namespace trireme::internal {
namespace {

// Time until a lane sees a result that another lane has just made, measured between two cores. Also
// keeps graphs of tiny operators in one lane.
constexpr double kHandOverSeconds = 5e-6;
constexpr double kWakeUpSeconds = 30e-6;  // time until a helper thread starts
constexpr uint32_t kEnded = std::numeric_limits<uint32_t>::max();  // count of a lane that stopped

// Calls `visit` with each value that a node uses.
template <typename Visit>
void for_each_value_of(const NodePlan& node, const Visit& visit) {
  for (const ArgumentPlan& argument : node.arguments) {
    if (argument.kind == ArgumentPlan::Kind::kValue) visit(argument.value);
    for (int64_t value : argument.values) {
      if (value >= 0) visit(static_cast<uint32_t>(value));
    }
  }
}

// Returns the nodes that each node must wait for, fences included.
std::vector<std::vector<uint32_t>> dependencies(const Plan& plan) {
  const size_t values = plan.graph->def.values_size();
  std::vector<int64_t> maker(values, -1);
  std::vector<std::vector<uint32_t>> needs(plan.nodes.size());
  int64_t fence = -1, random = -1;
  for (uint32_t i = 0; i < plan.nodes.size(); ++i) {
    const NodePlan& node = plan.nodes[i];
    if (node.writes) {
      // A fence waits for everything since the last fence, which has waited for the rest.
      for (uint32_t before = fence < 0 ? 0 : fence; before < i; ++before)
        needs[i].push_back(before);
      fence = i;
    } else {
      if (fence >= 0) needs[i].push_back(fence);
      if (node.random && random >= 0) needs[i].push_back(random);
      for_each_value_of(node, [&](uint32_t value) {
        if (maker[value] >= 0) needs[i].push_back(maker[value]);
      });
    }
    if (node.random) random = i;
    for (const NodePlan::Result& result : node.results) {
      if (result.value >= 0) maker[result.value] = i;
      for (int64_t value : result.list) {
        if (value >= 0) maker[value] = i;
      }
    }
  }
  return needs;
}

// Returns the nodes that each node must wait for because of values and memory alone. A reader waits
// for the last writer, and a writer for the readers since then as well.
std::vector<std::vector<uint32_t>> memory_dependencies(const Plan& plan) {
  struct Uses {
    int64_t writer = -1;
    std::vector<uint32_t> readers;  // since the last write
  };
  const auto& values = plan.graph->def.values();
  std::vector<int64_t> maker(values.size(), -1);
  std::map<int64_t, Uses> memory;  // by storage
  // Inputs may share memory with each other.
  const auto storage_of = [&](int64_t value) -> int64_t {
    return values[value].source() == proto::Value::INPUT ? -1 : int64_t{plan.storages[value]};
  };
  std::vector<std::vector<uint32_t>> needs(plan.nodes.size());
  for (uint32_t i = 0; i < plan.nodes.size(); ++i) {
    const NodePlan& node = plan.nodes[i];
    std::set<int64_t> used, written;
    for_each_value_of(node, [&](uint32_t value) {
      if (maker[value] >= 0) needs[i].push_back(maker[value]);
      used.insert(storage_of(value));
    });
    for (int argument : writable_arguments(node.op)) {
      const ArgumentPlan& plan_of = node.arguments[argument];
      if (plan_of.kind == ArgumentPlan::Kind::kValue) written.insert(storage_of(plan_of.value));
      for (int64_t value : plan_of.values) {
        if (value >= 0) written.insert(storage_of(value));
      }
    }
    for (int64_t storage : used) {
      Uses& uses = memory[storage];
      if (uses.writer >= 0) needs[i].push_back(uses.writer);
      if (!written.contains(storage)) {
        uses.readers.push_back(i);
        continue;
      }
      needs[i].insert(needs[i].end(), uses.readers.begin(), uses.readers.end());
      uses = {i, {}};
    }
    for (const NodePlan::Result& result : node.results) {
      if (result.value >= 0) maker[result.value] = i;
      for (int64_t value : result.list) {
        if (value >= 0) maker[value] = i;
      }
    }
  }
  return needs;
}

struct LaneAssignment {
  std::vector<int> lane;           // lane of each node
  std::vector<uint32_t> position;  // position of each node in its lane
  double end = 0;                  // predicted time at which the last node is finished
};

// Assigns each node, in captured order, to the lane on which it can start first.
LaneAssignment assign_lanes(const Plan& plan, const std::vector<std::vector<uint32_t>>& needs,
                            const std::vector<double>& seconds, int lanes) {
  LaneAssignment placement{std::vector<int>(needs.size()), std::vector<uint32_t>(needs.size())};
  std::vector<double> end(needs.size()), free_at(lanes, kWakeUpSeconds);
  std::vector<uint32_t> length(lanes, 0);
  free_at[0] = 0;
  for (size_t i = 0; i < needs.size(); ++i) {
    const bool anywhere = !plan.nodes[i].writes && !plan.nodes[i].random;
    int best = 0;
    double best_start = std::numeric_limits<double>::infinity();
    for (int lane = 0; lane < (anywhere ? lanes : 1); ++lane) {
      double start = free_at[lane];
      for (uint32_t need : needs[i]) {
        const bool elsewhere = placement.lane[need] != lane;
        start = std::max(start, end[need] + (elsewhere ? kHandOverSeconds : 0));
      }
      if (start < best_start) best = lane, best_start = start;
    }
    placement.lane[i] = best;
    placement.position[i] = length[best]++;
    free_at[best] = end[i] = best_start + seconds[i];
    placement.end = std::max(placement.end, end[i]);
  }
  return placement;
}

// Sets the waits of all steps.
void add_waits(const std::vector<std::vector<uint32_t>>& needs, const LaneAssignment& placement,
               BranchSchedule& schedule) {
  // known[a][b] is the number of steps of lane b that lane a has already waited for.
  const size_t lanes = schedule.lanes.size();
  std::vector<std::vector<uint32_t>> known(lanes, std::vector<uint32_t>(lanes, 0));
  for (size_t i = 0; i < needs.size(); ++i) {
    const int lane = placement.lane[i];
    std::vector<uint32_t> wanted(lanes, 0);
    for (uint32_t need : needs[i]) {
      uint32_t& count = wanted[placement.lane[need]];
      count = std::max(count, placement.position[need] + 1);
    }
    for (int other = 0; other < static_cast<int>(lanes); ++other) {
      if (other == lane || wanted[other] <= known[lane][other]) continue;
      known[lane][other] = wanted[other];
      schedule.lanes[lane][placement.position[i]].waits.emplace_back(other, wanted[other]);
    }
  }
}

// Decides which steps release values. A value that only one lane uses is released by the last step
// that uses it. If several lanes use it, the lane that reaches its last use last releases it, which
// is known only at run time. Values that the plan does not release are skipped.
void add_frees(const Plan& plan, const LaneAssignment& placement, BranchSchedule& schedule) {
  const size_t values = plan.graph->def.values_size();
  std::vector<bool> freed(values, false);
  std::vector<std::vector<int64_t>> last_in_lane(schedule.lanes.size(),
                                                 std::vector<int64_t>(values, -1));
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const NodePlan& node = plan.nodes[i];
    for (const ArgumentPlan& argument : node.arguments) {
      if (argument.last_use) freed[argument.value] = true;
    }
    for (uint32_t value : node.free_after) freed[value] = true;
    for_each_value_of(node, [&](uint32_t value) { last_in_lane[placement.lane[i]][value] = i; });
  }
  schedule.release_count.assign(values, 0);
  for (size_t value = 0; value < values; ++value) {
    if (!freed[value]) continue;
    std::vector<int64_t> last;
    for (const auto& lane : last_in_lane) {
      if (lane[value] >= 0) last.push_back(lane[value]);
    }
    for (int64_t node : last) {
      BranchStep& step = schedule.lanes[placement.lane[node]][placement.position[node]];
      (last.size() == 1 ? step.frees : step.releases).push_back(value);
    }
    if (last.size() > 1) schedule.release_count[value] = last.size();
  }
}

// The helper threads of the process, for one run at a time. Never destroyed: threads may still run
// when static objects are destroyed.
class Helpers {
 public:
  static Helpers& get() {
    static auto* helpers = new Helpers;
    return *helpers;
  }

  // Returns true if the caller now has the helpers; it must release() them.
  bool try_acquire() { return !taken_.exchange(true, std::memory_order_acquire); }
  void release() { taken_.store(false, std::memory_order_release); }

  // Starts work_of(i) on helper i. The caller must have acquired the helpers.
  void submit(int helpers, const std::function<Work(int)>& work_of) {
    while (static_cast<int>(threads_.size()) < helpers) threads_.emplace_back("branch", 1);
    for (int i = 0; i < helpers; ++i) threads_[i].submit(work_of(i));
  }

 private:
  std::atomic<bool> taken_ = false;  // true while a run has the helpers
  std::deque<ThreadPool> threads_;   // one thread each; guarded by taken_
};

// The state that the lanes of one run share. Each lane holds a reference, since a helper may still
// be inside of notify_all() when lane 0 has seen its count and returned.
struct Progress {
  explicit Progress(size_t lanes) : ended(lanes) {}

  std::vector<std::atomic<uint32_t>> ended;  // finished steps of each lane; kEnded once it stopped
  std::atomic<uint32_t> failed_at = kEnded;  // the first node, in captured order, that failed
  Mutex mutex;
  absl::Status status ABSL_GUARDED_BY(mutex);  // the error of that node

  // Records a failure, unless an earlier node has failed as well.
  void fail(uint32_t node, absl::Status why) {
    MutexLock lock(mutex);
    if (node >= failed_at) return;
    failed_at = node;
    status = std::move(why);
  }

  // Blocks until a lane has finished `count` steps or has stopped.
  void wait(int lane, uint32_t count) {
    constexpr int kSpins = 2000;  // about 20 microseconds, less than it takes to sleep and wake up
    uint32_t now = ended[lane].load(std::memory_order_acquire);
    for (int i = 0; now < count && i < kSpins; ++i) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
      now = ended[lane].load(std::memory_order_acquire);
    }
    for (; now < count; now = ended[lane].load(std::memory_order_acquire)) {
      ended[lane].wait(now, std::memory_order_acquire);
    }
  }

  // Publishes the number of finished steps and wakes the lanes that wait for it.
  void advance(int lane, uint32_t count) {
    ended[lane].store(count, std::memory_order_release);
    ended[lane].notify_all();
  }
};

void run_lane(const BranchSchedule& schedule, int lane, Progress& progress,
              const std::function<absl::Status(int, const BranchStep&)>& run_step) {
  uint32_t count = 0;
  for (const BranchStep& step : schedule.lanes[lane]) {
    for (const auto& [other, ended] : step.waits) progress.wait(other, ended);
    // Steps before the failed node in captured order still run, since one of them may fail too.
    if (progress.failed_at < step.node) break;
    absl::Status status = run_step(lane, step);
    if (!status.ok()) {
      progress.fail(step.node, std::move(status));
      break;
    }
    progress.advance(lane, ++count);
  }
  progress.advance(lane, kEnded);
}

}  // namespace

BranchSchedule schedule_branches(const Plan& plan, const std::vector<double>& seconds, int lanes) {
  const auto needs = dependencies(plan);
  const LaneAssignment placement = assign_lanes(plan, needs, seconds, lanes);
  BranchSchedule schedule;
  schedule.lanes.resize(lanes);
  for (uint32_t i = 0; i < plan.nodes.size(); ++i) {
    schedule.lanes[placement.lane[i]].push_back({i, {}, {}, {}});
    schedule.serial_seconds += seconds[i];
  }
  schedule.seconds = placement.end;
  add_waits(needs, placement, schedule);
  add_frees(plan, placement, schedule);
  return schedule;
}

BranchSchedule schedule_lanes(const Plan& plan, const std::vector<int>& lane_of_node, int lanes) {
  LaneAssignment placement{lane_of_node, std::vector<uint32_t>(lane_of_node.size())};
  BranchSchedule schedule;
  schedule.lanes.resize(lanes);
  for (uint32_t i = 0; i < plan.nodes.size(); ++i) {
    std::vector<BranchStep>& lane = schedule.lanes[lane_of_node[i]];
    placement.position[i] = static_cast<uint32_t>(lane.size());
    lane.push_back({i, {}, {}, {}});
  }
  add_waits(memory_dependencies(plan), placement, schedule);
  add_frees(plan, placement, schedule);
  return schedule;
}

bool run_branches(const BranchSchedule& schedule,
                  const std::function<absl::Status(int, const BranchStep&)>& run_step,
                  absl::Status* status, int helper_threads) {
  Helpers& helpers = Helpers::get();
  if (!helpers.try_acquire()) return false;
  // The start of a thread may throw.
  const absl::Cleanup release = [&] { helpers.release(); };
  const auto progress = std::make_shared<Progress>(schedule.lanes.size());
  const int helper_count = static_cast<int>(schedule.lanes.size()) - 1;
  // An operator of a branch must see the same thread count on every lane, because the count decides
  // how sums are split and thereby rounded.
  const int threads = helper_threads > 0 ? helper_threads : at::get_num_threads();
  const at::ThreadLocalState state;
  // Kernels that the caller has queued come first on every lane.
  const std::vector<c10::Stream> streams = current_streams();
  helpers.submit(helper_count, [&](int helper) {
    return Work([&schedule, &run_step, &state, &streams, progress, helper, threads] {
      const at::ThreadLocalStateGuard as_caller(state);
      const UseStreams of_caller(streams);
      set_operator_threads(threads);
      run_lane(schedule, helper + 1, *progress, run_step);
    });
  });
  run_lane(schedule, 0, *progress, run_step);
  for (int helper = 0; helper < helper_count; ++helper) progress->wait(helper + 1, kEnded);
  MutexLock lock(progress->mutex);
  *status = progress->status;
  return true;
}

}  // namespace trireme::internal
