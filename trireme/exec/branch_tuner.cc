#include "trireme/exec/branch_tuner.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace trireme::internal {
namespace {

constexpr int kWarmUpRuns = 1, kTimedRuns = 3;
constexpr size_t kTrialRuns = 7;  // each way
constexpr int kMostLanes = 8;
// After a trial that branches won, two runs of so many are measured for the next. Even, so that one
// of them is in captured order.
constexpr int kWatchEvery = 26;
// What branches must promise to be tried, and what they must keep to stay.
constexpr double kPromise = 0.85, kGain = 0.9;

double median(std::vector<double>& values) {
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

BranchTuner::Attempt BranchTuner::next() {
  // As many threads as the program allows its operators, and none inside of its own parallel code.
  if (at::get_num_threads() <= 1 || at::in_parallel_region()) return {};
  MutexLock lock(mutex_);
  if (schedule_ == nullptr) {
    return settled_ ? Attempt{} : Attempt{.time_operators = true, .measured = true};
  }
  const uint64_t run = runs_++;
  if (settled_ && run % kWatchEvery > 1) return {.schedule = schedule_};
  return {.schedule = run % 2 == 0 ? nullptr : schedule_, .measured = true};
}

void BranchTuner::report(const Plan& plan, const Attempt& attempt, double seconds,
                         const std::vector<double>& operator_seconds) {
  MutexLock lock(mutex_);
  if (attempt.time_operators) {
    if (settled_ || schedule_ != nullptr || ++timed_runs_ <= kWarmUpRuns) return;
    if (operator_seconds_.empty()) operator_seconds_ = operator_seconds;
    for (size_t i = 0; i < operator_seconds.size(); ++i) {
      operator_seconds_[i] = std::min(operator_seconds_[i], operator_seconds[i]);
    }
    if (timed_runs_ == kWarmUpRuns + kTimedRuns) begin_trial(plan, at::get_num_threads());
    return;
  }
  if (schedule_ == nullptr) return;
  trial_[attempt.schedule == nullptr ? 0 : 1].push_back(seconds);
  if (std::min(trial_[0].size(), trial_[1].size()) < kTrialRuns) return;
  if (median(trial_[1]) > kGain * median(trial_[0])) schedule_ = nullptr;
  settled_ = true;
  for (auto& times : trial_) times.clear();
}

void BranchTuner::begin_trial(const Plan& plan, int lanes) {
  auto schedule = std::make_shared<BranchSchedule>(
      schedule_branches(plan, operator_seconds_, std::min(lanes, kMostLanes)));
  operator_seconds_ = {};
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
