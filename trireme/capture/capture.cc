#include "trireme/capture/capture.h"

#include <ATen/core/grad_mode.h>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/base/mutex.h"
#include "trireme/capture/operator_hook.h"
#include "trireme/capture/recorder.h"
#include "trireme/exec/random.h"

namespace trireme::internal {
namespace {

thread_local Recorder* current_recorder = nullptr;

class CurrentRecorder {
 public:
  explicit CurrentRecorder(Recorder* recorder) : hook_(recorder) { current_recorder = recorder; }
  ~CurrentRecorder() { current_recorder = nullptr; }

 private:
  const HookScope hook_;
};

// Variables enter the step without gradients, as after zero_grad(), and leave with those that they
// had before it. A second capture finds some, so that a step that adds to them shows.
class GradientsSetAside {
 public:
  GradientsSetAside(Recorder& recorder, bool leave_some) {
    for (auto& record : live_variables()) {
      if (!record->tensor.requires_grad() || !record->tensor.is_leaf()) continue;
      at::Tensor& gradient = record->tensor.mutable_grad();
      saved_.emplace_back(record, gradient);
      gradient = at::Tensor();
      if (leave_some) {
        gradient = record->tensor.detach().clone();
        recorder.add_leftover_gradient(gradient);
      }
    }
  }
  ~GradientsSetAside() {
    for (auto& [record, gradient] : saved_) record->tensor.mutable_grad() = gradient;
  }

 private:
  std::vector<std::pair<std::shared_ptr<VariableRecord>, at::Tensor>> saved_;
};

}  // namespace

Captured capture(const StepBody& step, const std::vector<at::Tensor>& inputs,
                 const CaptureOptions& options) {
  if (current_recorder != nullptr) {
    throw Error(ErrorCode::kInternal, "a capture inside of a capture");
  }
  // One at a time: each sets aside the gradients of all variables, also of those that another
  // thread's function is about to differentiate.
  static Mutex one_at_a_time;
  const MutexLock lock(one_at_a_time);
  Recorder recorder(options);
  std::vector<at::Tensor> outputs;
  {
    const GradientsSetAside gradients(recorder, /*leave_some=*/options.perturbation > 0);
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
