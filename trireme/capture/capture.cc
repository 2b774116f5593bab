// Sets up one capture and cleans up after it. A Recorder becomes the operator hook of the calling
// thread, the step runs, and the recorder turns what it saw into a graph. Around that, everything
// that the step could change in the program is saved and put back:
//
// - Arguments are copied, and kernels see scratch copies of variables (see recorder_values.cc).
// - `.grad` of every variable is cleared before the step and restored after it (SavedGradients).
//   This is why captures are serialised by a mutex: a variable's gradient belongs to the process,
//   and two captures would clear and restore each other's. The mutex is held while the step runs.
// - LibTorch's default generator is watched and restored (WatchDefaultGenerator). Random operators
//   draw from a generator of the step instead.
//
// The recorder's finish() must run after the step's tensors are gone: it looks for tensors that the
// program kept, and for memory that was written without an operator.
#include "trireme/capture/capture.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/base/mutex.h"
#include "trireme/capture/dropout_watch.h"
#include "trireme/capture/memory_lock.h"
#include "trireme/capture/operator_hook.h"
#include "trireme/capture/recorder.h"
#include "trireme/capture/scratch.h"
#include "trireme/exec/step_generator.h"

namespace trireme::internal {
namespace {

thread_local Recorder* current_recorder = nullptr;

// Makes `recorder` the current recorder of this thread while the object lives.
class CurrentRecorder {
 public:
  explicit CurrentRecorder(Recorder* recorder) : hook_(recorder) { current_recorder = recorder; }
  ~CurrentRecorder() { current_recorder = nullptr; }

 private:
  const HookScope hook_;
};

// Clears the gradients of all variables, as zero_grad() does, and restores them when it is
// destroyed. With `plant_leftovers` each variable gets a marked gradient instead, as if an earlier
// step had left it there. A step that adds to leftover gradients then uses one of them, and is
// rejected.
class SavedGradients {
 public:
  SavedGradients(Recorder& recorder, bool plant_leftovers) {
    for (auto& record : live_variables()) {
      if (!record->tensor.requires_grad() || !record->tensor.is_leaf()) continue;
      at::Tensor& gradient = record->tensor.mutable_grad();
      saved_.emplace_back(record, gradient);
      gradient = at::Tensor();
      if (plant_leftovers) {
        gradient = scratch_copy(record->tensor).detach();
        recorder.add_leftover_gradient(gradient);
      }
    }
  }
  ~SavedGradients() {
    for (auto& [record, gradient] : saved_) record->tensor.mutable_grad() = gradient;
  }

  // Returns the gradients that the step has left.
  Recorder::LeftGradients left() const {
    Recorder::LeftGradients left;
    for (const auto& [record, gradient] : saved_) {
      if (record->tensor.grad().defined()) left.emplace_back(record->name, record->tensor.grad());
    }
    return left;
  }

 private:
  std::vector<std::pair<std::shared_ptr<VariableRecord>, at::Tensor>> saved_;
};

// Locks the memory of variables in the program while it lives.
class LockedVariables {
 public:
  LockedVariables(const std::vector<std::shared_ptr<VariableRecord>>& variables,
                  const std::string& message)
      : variables_(variables) {
    for (const auto& variable : variables_) lock_memory(variable->tensor, message);
  }
  ~LockedVariables() {
    for (const auto& variable : variables_) unlock_memory(variable->tensor);
  }

 private:
  const std::vector<std::shared_ptr<VariableRecord>>& variables_;
};

// Empties LibTorch's cache of autocast before and after a step. It keeps copies of parameters in
// another dtype: one from before would be a tensor from outside, one of the step would outlive it.
class EmptyAutocastCache {
 public:
  EmptyAutocastCache() { at::autocast::clear_cache(); }
  ~EmptyAutocastCache() { at::autocast::clear_cache(); }
};

// Runs the step as the current step of this thread. Turns an access to locked memory into an Error.
std::vector<at::Tensor> run_step(Recorder& recorder, const StepBody& step,
                                 const std::vector<at::Tensor>& arguments,
                                 const CaptureOptions& options) {
  const CurrentRecorder current(&recorder);
  const EmptyAutocastCache autocast;
  const LockedVariables locked(options.lock_variables, recorder.lock_message());
  std::optional<DropoutWatch> dropouts;
  if (options.is_known_dropout) dropouts.emplace(options.is_known_dropout);
  try {
    std::vector<at::Tensor> outputs = recorder.set_outputs(step(arguments));
    if (dropouts && !dropouts->unknown_module().empty()) {
      throw Error(
          ErrorCode::kFailedPrecondition,
          absl::StrCat("function '", options.name,
                       "' cannot be captured: it calls torch::nn::", dropouts->unknown_module(),
                       ", which is not tracked, so its train() and eval() would not be "
                       "noticed. Register it in the module that the optimizer was made "
                       "with, or call tr::track() for it"));
    }
    return outputs;
  } catch (const c10::Error& error) {
    const std::string& message = recorder.lock_message();
    if (!absl::StrContains(error.what_without_backtrace(), message)) throw;
    throw Error(ErrorCode::kFailedPrecondition, message);
  }
}

}  // namespace

Captured capture(const StepBody& step, const std::vector<at::Tensor>& inputs,
                 const CaptureOptions& options) {
  if (current_recorder != nullptr) {
    throw Error(ErrorCode::kInternal, "a capture was started inside another capture");
  }
  // Each capture clears the gradients of all variables, including those that a step on another
  // thread is about to differentiate, so captures take turns.
  static Mutex one_at_a_time;
  const MutexLock lock(one_at_a_time);
  Recorder recorder(options);
  std::vector<at::Tensor> outputs;
  {
    const SavedGradients gradients(recorder, /*plant_leftovers=*/options.repeated);
    std::vector<at::Tensor> arguments;
    for (const at::Tensor& input : inputs) arguments.push_back(recorder.add_input(input));
    const WatchDefaultGenerator generator;
    outputs = run_step(recorder, step, arguments, options);
    if (!options.repeated) recorder.check_left_gradients(gradients.left());
    if (generator.was_seeded()) {
      throw Error(ErrorCode::kFailedPrecondition,
                  absl::StrCat("function '", options.name,
                               "' cannot be captured: it seeds LibTorch's default generator. A "
                               "step's random numbers follow from tr::set_seed and the step's "
                               "number; seed outside of the function"));
    }
  }
  return recorder.finish(std::move(outputs));
}

bool is_capturing() {
  return current_recorder != nullptr;
}

std::string captured_function() {
  return current_recorder == nullptr ? "" : current_recorder->name();
}

}  // namespace trireme::internal
