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

#include <ATen/core/grad_mode.h>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/base/mutex.h"
#include "trireme/capture/operator_hook.h"
#include "trireme/capture/recorder.h"
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
        gradient = record->tensor.detach().clone();
        recorder.add_leftover_gradient(gradient);
      }
    }
  }
  ~SavedGradients() {
    for (auto& [record, gradient] : saved_) record->tensor.mutable_grad() = gradient;
  }

 private:
  std::vector<std::pair<std::shared_ptr<VariableRecord>, at::Tensor>> saved_;
};

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
    const SavedGradients gradients(recorder, /*plant_leftovers=*/options.perturbation > 0);
    std::vector<at::Tensor> arguments;
    for (const at::Tensor& input : inputs) arguments.push_back(recorder.add_input(input));
    const WatchDefaultGenerator generator;
    {
      const CurrentRecorder current(&recorder);
      outputs = recorder.set_outputs(step(arguments));
    }
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
