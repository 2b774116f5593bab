#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/exec/branches.h"

namespace trireme::internal {

// Measures whether a plan runs faster in branches, while the program uses it. One tuner serves one
// plan. Thread-safe.
//
// Each run of the plan asks next() how to run and, if it was measured, reports its time:
//   1. The first runs time every operator. From these times a schedule is made.
//   2. If the schedule predicts a gain, a trial follows: runs alternate between captured order and
//      branches, and their medians are compared. If not, the plan stays in captured order.
//   3. If branches win the trial, they are used from then on. A few runs are still measured both
//      ways, since a machine that becomes busy has no cores to spare. Once branches lose, captured
//      order stays for good.
class BranchTuner {
 public:
  // How to do one run.
  struct Attempt {
    std::shared_ptr<const BranchSchedule> schedule;  // the branches; null for captured order
    bool time_operators = false;                     // true if every operator must be timed
    bool measured = false;                           // true if the run's time must be reported
  };

  // Returns how the next run is done.
  Attempt next();
  // Reports the time of a measured run. `operator_seconds` has the time of each operator if the
  // attempt asked for it.
  void report(const Plan& plan, const Attempt& attempt, double seconds,
              const std::vector<double>& operator_seconds);

  // Returns true once the first trial is over, or no trial was worthwhile.
  bool settled() const;
  // Returns true if the tuner has settled and runs use branches.
  bool uses_branches() const;

 private:
  void begin_trial(const Plan& plan, int lanes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  bool settled_ ABSL_GUARDED_BY(mutex_) = false;
  // The schedule on trial or in use; null before the first trial and once branches have lost.
  std::shared_ptr<const BranchSchedule> schedule_ ABSL_GUARDED_BY(mutex_);
  int timed_runs_ ABSL_GUARDED_BY(mutex_) = 0;  // runs that timed every operator
  uint64_t runs_ ABSL_GUARDED_BY(mutex_) = 0;   // runs since the schedule was made
  // Shortest time of each operator in the timed runs.
  std::vector<double> operator_seconds_ ABSL_GUARDED_BY(mutex_);
  // Times of the current trial: [0] in captured order, [1] in branches.
  std::vector<double> trial_[2] ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
