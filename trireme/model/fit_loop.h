#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "trireme/model/executions.h"
#include "trireme/model/fit_state.h"

namespace trireme::internal {

// How the loop of a fit() goes.
struct FitLoopOptions {
  int64_t steps_per_execution = 1;
  // Number of steps of an epoch; 0 if it ends with the data.
  int64_t steps_per_epoch = 0;
  // Runs the validation and adds its figures to `logs`. Null for none.
  std::function<void(Logs& logs)> validate = nullptr;
  int64_t validation_freq = 1;  // epochs from one validation to the next
  // Callbacks of the model itself, which come after those of the program. Not in checkpoints.
  std::vector<AnyCallback> own_callbacks = {};
};

// The loop of fit(): epochs of executions, and the calls of callbacks. Used once, by one thread.
class FitLoop {
 public:
  // All arguments must outlive the loop.
  FitLoop(FitState& state, const StepFunction& train, const FitLoopOptions& options);

  // Runs all epochs. Throws Error if a step fails or the data ends too early, and rethrows what a
  // callback throws. No step is under way when it returns or throws. An error of one worker ends
  // the group of workers that train together.
  void run();

 private:
  void run_epochs();
  void run_epoch();
  void run_steps();
  void set_rate();
  void absorb(const Executions::Result& result);
  [[noreturn]] void throw_exhausted() const;
  // Absorbs the results of all executions under way.
  void drain();
  void call_save_points(bool epoch_ended);
  template <typename Call>
  void call_all(const Call& call);

  FitState& state_;
  const StepFunction& train_;
  const FitLoopOptions& options_;
  const Fit fit_;
  std::vector<AnyCallback> callbacks_;
  Executions executions_;
  Logs logs_;                // figures of the current epoch
  bool data_ended_ = false;  // true once an execution of the epoch has found the end of the data
  bool epoch_cut_ = false;   // true once a callback has stopped the fit() for a batch
  double rate_set_ = -1;     // rate that the schedule has set last
};

}  // namespace trireme::internal
