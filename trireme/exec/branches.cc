#include "trireme/exec/branches.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <limits>
#include <memory>

#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"
#include "trireme/graph/plan.h"

namespace trireme::internal {
namespace {

// What it costs when a lane needs what another has just made. Measured between two cores; also
// keeps graphs of tiny operators in one lane.
constexpr double kHandOverSeconds = 5e-6;
constexpr double kWakeUpSeconds = 30e-6;
constexpr uint32_t kEnded = std::numeric_limits<uint32_t>::max();

template <typename Visit>
void for_each_value_of(const NodePlan& node, const Visit& visit) {
  for (const ArgumentPlan& argument : node.arguments) {
    if (argument.kind == ArgumentPlan::Kind::kValue) visit(argument.value);
    for (int64_t value : argument.values) {
      if (value >= 0) visit(static_cast<uint32_t>(value));
    }
  }
}

// The nodes that each node waits for, fences included.
std::vector<std::vector<uint32_t>> dependencies(const Plan& plan) {
  const size_t values = plan.graph->def.values_size();
  std::vector<int64_t> maker(values, -1);
  std::vector<std::vector<uint32_t>> needs(plan.nodes.size());
  int64_t fence = -1, random = -1;
  for (uint32_t i = 0; i < plan.nodes.size(); ++i) {
    const NodePlan& node = plan.nodes[i];
    if (node.writes) {
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

struct Placement {
  std::vector<int> lane;
  std::vector<uint32_t> position;  // in its lane
  double end = 0;
};

// In captured order, each node goes where it can begin first.
Placement place(const Plan& plan, const std::vector<std::vector<uint32_t>>& needs,
                const std::vector<double>& seconds, int lanes) {
  Placement placement{std::vector<int>(needs.size()), std::vector<uint32_t>(needs.size())};
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

void add_waits(const std::vector<std::vector<uint32_t>>& needs, const Placement& placement,
               BranchSchedule& schedule) {
  // What each lane knows already to have ended in the others.
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

void add_frees(const Plan& plan, const Placement& placement, BranchSchedule& schedule) {
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
  schedule.released_by.assign(values, 0);
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
    if (last.size() > 1) schedule.released_by[value] = last.size();
  }
}

// The helper threads of the process, for one run at a time. Never destroyed: threads may still run
// when static objects go.
class Helpers {
 public:
  static Helpers& get() {
    static auto* helpers = new Helpers;
    return *helpers;
  }

  bool try_take() { return !taken_.exchange(true, std::memory_order_acquire); }
  void give_back() { taken_.store(false, std::memory_order_release); }

  // Only by who has taken them.
  void submit(int helpers, const std::function<Work(int)>& work_of) {
    while (static_cast<int>(threads_.size()) < helpers) threads_.emplace_back("branch", 1);
    for (int i = 0; i < helpers; ++i) threads_[i].submit(work_of(i));
  }

 private:
  std::atomic<bool> taken_ = false;
  std::deque<ThreadPool> threads_;
};

// What the lanes of one run share. Held by each of them, since a lane that wakes the others may be
// the last to touch it.
struct Progress {
  explicit Progress(size_t lanes) : ended(lanes) {}

  std::vector<std::atomic<uint32_t>> ended;  // per lane, how many steps; kEnded after the last
  std::atomic<uint32_t> failed_at = kEnded;  // the first node that failed
  Mutex mutex;
  absl::Status status ABSL_GUARDED_BY(mutex);

  void fail(uint32_t node, absl::Status why) {
    MutexLock lock(mutex);
    if (node >= failed_at) return;
    failed_at = node;
    status = std::move(why);
  }

  void wait(int lane, uint32_t count) {
    constexpr int kSpins = 2000;  // some 20 microseconds: less than a thread needs to fall asleep
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
    // What comes before a failure in captured order still runs, since it may fail too.
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
  const Placement placement = place(plan, needs, seconds, lanes);
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

bool run_branches(const BranchSchedule& schedule,
                  const std::function<absl::Status(int, const BranchStep&)>& run_step,
                  absl::Status* status) {
  Helpers& helpers = Helpers::get();
  if (!helpers.try_take()) return false;
  const auto progress = std::make_shared<Progress>(schedule.lanes.size());
  const int helper_count = static_cast<int>(schedule.lanes.size()) - 1;
  // An operator must see the same thread count on every lane: it decides how sums are split.
  const int threads = at::get_num_threads();
  const at::ThreadLocalState state;
  helpers.submit(helper_count, [&](int helper) {
    return Work([&schedule, &run_step, &state, progress, helper, threads] {
      const at::ThreadLocalStateGuard as_caller(state);
      if (at::get_num_threads() != threads) at::set_num_threads(threads);
      run_lane(schedule, helper + 1, *progress, run_step);
    });
  });
  run_lane(schedule, 0, *progress, run_step);
  for (int helper = 0; helper < helper_count; ++helper) progress->wait(helper + 1, kEnded);
  helpers.give_back();
  MutexLock lock(progress->mutex);
  *status = progress->status;
  return true;
}

}  // namespace trireme::internal
