#include "trireme/exec/branch_tuner.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace trireme::internal {
namespace {

constexpr int kWarmUpRuns = 1, kTimedRuns = 3;
constexpr size_t kTrialRuns = 7;  // runs in each of the two ways
constexpr int kMaxLanes = 8;
// Once branches have won a trial, the first two of every kRemeasureEvery runs are measured for the
// next trial. Even, so that the first of the two is always in captured order.
constexpr int kRemeasureEvery = 26;
// Branches are tried if their predicted time is at most kMaxPredictedRatio of the time in captured
// order, and kept if their measured time is at most kMaxMeasuredRatio of it.
constexpr double kMaxPredictedRatio = 0.85, kMaxMeasuredRatio = 0.9;

double median(std::vector<double>& values) {
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

BranchTuner::Attempt BranchTuner::next() {
  // Branches use as many threads as the program allows its operators, and no additional ones inside
  // of the program's own parallel code.
  if (at::get_num_threads() <= 1 || at::in_parallel_region()) return {};
  MutexLock lock(mutex_);
  if (schedule_ == nullptr) {
    return settled_ ? Attempt{} : Attempt{.time_operators = true, .measured = true};
  }
  const uint64_t run = runs_++;
  if (settled_ && run % kRemeasureEvery > 1) return {.schedule = schedule_};
  return {.schedule = run % 2 == 0 ? nullptr : schedule_, .measured = true};
}

void BranchTuner::report(const Plan& plan, const Attempt& attempt, double seconds,
                         const std::vector<double>& operator_seconds) {
  MutexLock lock(mutex_);
  if (attempt.time_operators) {
    // Several threads may run the plan at once, so a timed run can end after the trial has begun.
    if (settled_ || schedule_ != nullptr || ++timed_runs_ <= kWarmUpRuns) return;
    if (operator_seconds_.empty()) operator_seconds_ = operator_seconds;
    for (size_t i = 0; i < operator_seconds.size(); ++i) {
      operator_seconds_[i] = std::min(operator_seconds_[i], operator_seconds[i]);
    }
    if (timed_runs_ == kWarmUpRuns + kTimedRuns) begin_trial(plan, at::get_num_threads());
    return;
  }
  if (schedule_ == nullptr) return;
  // Medians are compared: on a busy machine the shortest time is one lucky run.
  trial_[attempt.schedule == nullptr ? 0 : 1].push_back(seconds);
  if (std::min(trial_[0].size(), trial_[1].size()) < kTrialRuns) return;
  if (median(trial_[1]) > kMaxMeasuredRatio * median(trial_[0])) schedule_ = nullptr;
  settled_ = true;
  for (auto& times : trial_) times.clear();
}

void BranchTuner::begin_trial(const Plan& plan, int lanes) {
  auto schedule = std::make_shared<BranchSchedule>(
      schedule_branches(plan, operator_seconds_, std::min(lanes, kMaxLanes)));
  operator_seconds_ = {};
  settled_ = schedule->seconds > kMaxPredictedRatio * schedule->serial_seconds;
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
