#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/exec/branches.h"

namespace trireme::internal {

// Finds out by running whether branches pay for a plan: the first runs time the operators, and if
// the schedule that follows promises something, further runs take turns between the captured order
// and the branches. If branches win they stay as long as they do: now and then two runs take turns
// again, since a machine that becomes busy has no cores to spare. What lost is not tried again.
// Thread-safe.
class BranchTuner {
 public:
  struct Attempt {
    std::shared_ptr<const BranchSchedule> schedule;  // none: run in captured order
    bool time_operators = false;
    bool measured = false;  // its time is to be reported
  };

  Attempt next();
  // How long an attempt's run took, and each operator of it if that was asked for.
  void report(const Plan& plan, const Attempt& attempt, double seconds,
              const std::vector<double>& operator_seconds);

  bool settled() const;        // a first trial is over, or was not worth it
  bool uses_branches() const;  // once settled

 private:
  void begin_trial(const Plan& plan, int lanes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  bool settled_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const BranchSchedule> schedule_ ABSL_GUARDED_BY(mutex_);
  int timed_runs_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t runs_ ABSL_GUARDED_BY(mutex_) = 0;                     // since there is a schedule
  std::vector<double> operator_seconds_ ABSL_GUARDED_BY(mutex_);  // the least of the timed runs
  // Of the trial under way, without branches and with them.
  std::vector<double> trial_[2] ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
