#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/distribute/step_runner.h"
#include "trireme/function/variable.h"
#include "trireme/model/callback.h"
#include "trireme/model/figure_sums.h"
#include "trireme/model/logs.h"
#include "trireme/optim/optimizer.h"
#include "trireme/train/checkpointed.h"
#include "trireme/train/worker_agreement.h"

namespace torch::nn {
class Module;
}

namespace trireme::internal {

// The objects that a fit() works on.
struct FitParts {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<Variable> variables;     // of the module
  std::optional<Optimizer> optimizer;  // nullopt if a train_step keeps it to itself
  std::shared_ptr<StepRunner> runner;
  std::shared_ptr<StepData> data;
  std::vector<AnyCallback> callbacks;
  WorkerGroup* workers = nullptr;  // null if there is only this process
};

// The place of a fit() in its epochs.
struct FitPlace {
  int64_t epoch = 0;            // number of the current epoch
  int64_t epochs = 1;           // number after the last epoch
  int64_t step = 0;             // steps that were started since the model was compiled
  int64_t step_of_epoch = 0;    // steps of the epoch that were started
  int64_t steps_per_epoch = 0;  // 0 while it is not known
  bool data_used = false;       // true if the data must be restarted before the next step
};

// Thrown by a save point to let the fit() begin again with on_train_begin(), where a callback
// restores a checkpoint.
struct FitRestart {};

// The state of a fit() that runs: class Fit is the part of it that callbacks see. Its loop is in
// fit_loop.h. Used by one thread.
//
// A callback that keeps checkpoints restores the state in its on_train_begin(), by restore() or by
// a CheckpointManager over checkpointed(). The loop then continues at the restored epoch and step,
// with the restored sums. Other callbacks get their own state back after all calls of
// on_train_begin(), so that their order in the list does not matter. To save, it adds a save point.
class FitState {
 public:
  // A moment at which the state is whole: no step is under way, each step that was started is in
  // the sums, and all callbacks have seen it.
  struct SavePoint {
    // Returns true if there is something to do. Called after each execution was started, and, with
    // true, when an epoch is over: its figures are in the history, and the place is the beginning
    // of the next epoch. Must be fast. Workers do not wait for it.
    std::function<bool(bool epoch_ended)> due;
    // Called if due() has returned true. Workers wait for it.
    std::function<void()> save;
    // Returns true once this process was told to end. Null if the save point does not know.
    std::function<bool()> interrupted = nullptr;
  };

  FitState(FitParts parts, FitPlace place, FigureSums sums);

  // For Fit, which describes them.
  void stop() { stopped_ = true; }
  bool stopped() const { return stopped_; }
  bool runs_here() const { return parts_.runner->runs_here(); }
  const History& history() const { return history_; }
  double lr() const;
  void set_lr(double lr);
  const std::vector<Variable>& variables() const { return parts_.variables; }
  void save_weights(const std::string& path) const;
  void load_weights(const std::string& path);
  void join() { parts_.runner->join(); }

  // Returns the runner of the steps.
  const StepRunner& runner() const { return *parts_.runner; }
  // Returns the place. It counts the steps that were started.
  const FitPlace& place() const { return place_; }

  // Returns the agreement of the workers that train together.
  const WorkerAgreement& agreement() const { return agreement_; }
  // Lets all workers know if one of them has stopped the fit() or was interrupted. They call it at
  // the same places. Returns true if `cut` is true on any of them.
  bool agree(bool cut);
  // Returns true once a worker was interrupted, as agree() has found.
  bool interrupted() const { return interrupted_; }

  // Returns the objects of a checkpoint: variables, optimizer, position in the data, and this state
  // as a text with the name "fit".
  std::vector<Checkpointed> checkpointed();
  // Returns the place, the sums of the epoch, the history, the learning rate, whether the fit() was
  // stopped, and the states of all callbacks as a text (JSON). Must be called in a save point, or
  // after join() in on_train_begin() or on_train_end().
  std::string save() const;
  // Sets all of this to that of a text of save(). Must be called in on_train_begin(). Throws Error
  // if the text is malformed, or if it is of a fit() with another number of callbacks.
  void restore(const std::string& text);
  // Lets the loop call a save point from now on, until the fit() ends.
  void add_save_point(SavePoint point) { save_points_.push_back(std::move(point)); }

 private:
  friend class FitLoop;

  FitParts parts_;
  FitPlace place_;
  FigureSums sums_;  // of the current epoch
  History history_;
  std::vector<SavePoint> save_points_;
  std::vector<std::string> callback_states_;  // restored states that callbacks do not have yet
  bool follows_schedule_ = true;              // false once a callback has set the rate
  bool stopped_ = false;
  bool interrupted_ = false;
  const WorkerAgreement agreement_;
};

}  // namespace trireme::internal
