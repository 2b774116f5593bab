#include "trireme/graph/branch_tuner.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>

namespace trireme::internal {
namespace {

constexpr int kWarmUpRuns = 1, kTimedRuns = 3, kTrialRuns = 12;
constexpr int kMostLanes = 8;
// Branches must promise this much before they are tried, and keep this much to stay: what they
// gain on an idle machine must outlast a busy one.
constexpr double kPromise = 0.85, kGain = 0.9;

}  // namespace

BranchTuner::Attempt BranchTuner::next() const {
  // As many threads as the program allows its operators, and none inside of its own parallel code.
  const bool may_branch = at::get_num_threads() > 1 && !at::in_parallel_region();
  MutexLock lock(mutex_);
  if (!may_branch) return {};
  if (settled_) return {.schedule = schedule_};
  if (schedule_ == nullptr) return {.time_operators = true, .measured = true};
  return {.schedule = trial_runs_ % 2 == 0 ? nullptr : schedule_, .measured = true};
}

void BranchTuner::report(const Plan& plan, const Attempt& attempt, double seconds,
                         const std::vector<double>& operator_seconds) {
  MutexLock lock(mutex_);
  if (settled_ || !attempt.measured) return;
  if (attempt.time_operators) {
    if (schedule_ != nullptr || ++timed_runs_ <= kWarmUpRuns) return;
    if (operator_seconds_.empty()) operator_seconds_ = operator_seconds;
    for (size_t i = 0; i < operator_seconds.size(); ++i) {
      operator_seconds_[i] = std::min(operator_seconds_[i], operator_seconds[i]);
    }
    if (timed_runs_ == kWarmUpRuns + kTimedRuns) begin_trial(plan, at::get_num_threads());
    return;
  }
  double& least = least_[attempt.schedule == nullptr ? 0 : 1];
  least = std::min(least, seconds);
  if (++trial_runs_ < kTrialRuns) return;
  settled_ = true;
  if (least_[1] > kGain * least_[0]) schedule_ = nullptr;
}

void BranchTuner::begin_trial(const Plan& plan, int lanes) {
  auto schedule = std::make_shared<BranchSchedule>(
      schedule_branches(plan, operator_seconds_, std::min(lanes, kMostLanes)));
  operator_seconds_ = {};
  least_[0] = least_[1] = std::numeric_limits<double>::infinity();
  settled_ = schedule->seconds > kPromise * schedule->serial_seconds;
  if (!settled_) schedule_ = std::move(schedule);
}

bool BranchTuner::settled() const {
  MutexLock lock(mutex_);
  return settled_;
}

bool BranchTuner::uses_branches() const {
  MutexLock lock(mutex_);
  return settled_ && schedule_ != nullptr;
}

}  // namespace trireme::internal
