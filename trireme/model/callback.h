#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/access.h"
#include "trireme/model/logs.h"
#include "trireme/train/checkpointed.h"

namespace trireme {
namespace internal {
class FitState;
}

// A fit() that runs, as callbacks see it.
class Fit {
 public:
  // Ends the fit after the current epoch, or at once if it is called for a batch. No step that is
  // under way is lost. Under MultiWorkerMirroredStrategy a call by one worker ends the fit of all.
  void stop();
  // Returns true if stop() was called.
  bool stopped() const;

  // Returns the number of the current epoch, from 0.
  int64_t epoch() const;
  // Returns the number after the last epoch.
  int64_t epochs() const;
  // Returns how many steps the fit has started since the model was compiled, those before a restore
  // included.
  int64_t step() const;
  // Returns how many steps of the current epoch were started.
  int64_t step_of_epoch() const;
  // Returns the number of steps of an epoch; 0 while it is not known.
  int64_t steps_per_epoch() const;
  // Returns true if each batch is done when on_batch_end() is called, so that its figures are
  // there. Otherwise workers run several at once, and the figures are those that have arrived.
  bool runs_here() const;
  // Returns true in the process that writes files: under MultiWorkerMirroredStrategy that of worker
  // 0, otherwise always. A callback that writes files of its own writes them only there.
  bool is_chief() const;
  // Returns the figures of all epochs so far.
  const History& history() const;

  // Returns the learning rate.
  double lr() const;
  // Sets the learning rate of the steps that are started from now on. A schedule of the optimizer
  // is then no longer followed.
  void set_lr(double lr);

  // Returns the model's variables, by the names of its module.
  std::vector<Variable> variables() const;
  // Writes the model's weights to a safetensors file, as Model::save() does. All workers call it.
  void save_weights(const std::string& path) const;
  // Sets the model's weights, as Model::load() does.
  void load_weights(const std::string& path);
  // Blocks until all steps that were started are done.
  void join();

 private:
  friend struct internal::Access<Fit>;
  explicit Fit(internal::FitState& state) : state_(&state) {}

  internal::FitState* state_;
};

template <>
struct internal::Access<Fit> {
  static Fit make(FitState& state) { return Fit(state); }
  static FitState& state(const Fit& fit) { return *fit.state_; }
};

// Base class of what fit() calls at certain moments. All calls come from the thread of fit(), in
// the order of the list. An exception ends the fit.
class Callback {
 public:
  virtual ~Callback() = default;

  // Before the first epoch.
  virtual void on_train_begin(Fit& fit);
  // After the last epoch, also if the fit was stopped.
  virtual void on_train_end(Fit& fit, const Logs& logs);
  // Before the first step of an epoch.
  virtual void on_epoch_begin(Fit& fit);
  // After the last step of an epoch and its validation. `logs` are the figures of the epoch. A
  // callback may add figures, which are then in the history and seen by the callbacks after it.
  virtual void on_epoch_end(Fit& fit, Logs& logs);
  // Once for each execution of steps_per_execution steps, never while workers wait for it. `logs`
  // are the figures of the epoch so far (see Fit::runs_here()).
  virtual void on_batch_end(Fit& fit, const Logs& logs);
  // Before and after the validation of an epoch.
  virtual void on_validation_begin(Fit& fit);
  // After the validation of an epoch.
  virtual void on_validation_end(Fit& fit, const Logs& logs);

  // Returns the callback's state as a text, such as the best figure so far. Checkpoints have it.
  virtual std::string save() const;
  // Sets the state to one that save() has returned.
  virtual void restore(const std::string& state);
};

// A callback in the options of fit(), made implicitly: of an object of a class derived from
// Callback, which is copied, or of a shared pointer to one. Copies share the object.
class AnyCallback {
 public:
  template <std::derived_from<Callback> T>
  AnyCallback(T callback) : callback_(std::make_shared<T>(std::move(callback))) {}     // NOLINT
  AnyCallback(std::shared_ptr<Callback> callback) : callback_(std::move(callback)) {}  // NOLINT
  template <std::derived_from<Callback> T>
  AnyCallback(std::shared_ptr<T> callback) : callback_(std::move(callback)) {}  // NOLINT

  // Returns the callback.
  Callback& operator*() const { return *callback_; }
  // Returns the callback.
  Callback* operator->() const { return callback_.get(); }

 private:
  std::shared_ptr<Callback> callback_;
};

// Returns a callback that calls a function after each epoch.
//
//   tr::on_epoch_end([](tr::Fit& fit, const tr::Logs& logs) { if (logs["loss"] < 0.01) fit.stop();
//   })
AnyCallback on_epoch_end(std::function<void(Fit&, const Logs&)> function);
// Returns a callback that calls a function before each epoch.
AnyCallback on_epoch_begin(std::function<void(Fit&)> function);
// Returns a callback that calls a function for each execution of steps.
AnyCallback on_batch_end(std::function<void(Fit&, const Logs&)> function);
// Returns a callback that calls a function before the first epoch.
AnyCallback on_train_begin(std::function<void(Fit&)> function);
// Returns a callback that calls a function after the last epoch.
AnyCallback on_train_end(std::function<void(Fit&, const Logs&)> function);

}  // namespace trireme
