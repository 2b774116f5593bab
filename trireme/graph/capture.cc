#include "trireme/graph/capture.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/base/mutex.h"
#include "trireme/graph/device_scope.h"
#include "trireme/graph/operators.h"
#include "trireme/graph/random.h"
#include "trireme/graph/recorder.h"

namespace trireme::internal {
namespace {

thread_local Recorder* current_recorder = nullptr;
thread_local std::vector<std::string> scope_names;

// Makes a tensor of others. Views, writes in place and factories do not: they serve to make and to
// fill what variables start from.
bool computes(const c10::OperatorHandle& op) {
  bool takes_tensor = false;
  for (const c10::Argument& argument : op.schema().arguments()) {
    if (argument.alias_info() != nullptr) return false;
    takes_tensor |= argument.type()->str().find("Tensor") != std::string::npos;
  }
  return takes_tensor && !reads_only_metadata(op) && !is_random(op);
}

void record_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  if (current_recorder == nullptr && watches_eager_operators()) {
    const c10::impl::ExcludeDispatchKeyGuard not_again(kCaptureKey);
    check_eager_operator(operator_name(op), computes(op));
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kCaptureKey),
                       stack);
    return;
  }
  if (current_recorder == nullptr) {
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("operator '", op.operator_name().name,
                             "' of a function that is being captured ran on another thread; a "
                             "captured function runs on one thread"));
  }
  current_recorder->run(op, keys, stack);
}

// Once per process, when first needed. LibTorch means to use this key itself one day; then this
// must fail and not silently record nothing.
void register_fallback_once() {
  // Never destroyed. Marked as used: an optimiser that drops the pointer makes it look leaked.
  [[gnu::used]] static const auto* library = [] {
    if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kCaptureKey)) {
      throw Error(ErrorCode::kFailedPrecondition,
                  "this LibTorch uses the dispatch key that Trireme captures with "
                  "(trireme/graph/recorder.h, kCaptureKey); functions cannot be captured");
    }
    auto* made = new torch::Library(torch::Library::IMPL, "_", kCaptureKey, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&record_operator>());
    return made;
  }();
}

class CurrentRecorder {
 public:
  explicit CurrentRecorder(Recorder* recorder) { current_recorder = recorder; }
  ~CurrentRecorder() { current_recorder = nullptr; }
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

void register_capture() {
  register_fallback_once();
}

Captured capture(const StepBody& step, const std::vector<at::Tensor>& inputs,
                 const CaptureOptions& options) {
  register_capture();
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
      const c10::impl::IncludeDispatchKeyGuard recording(kCaptureKey);
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

void push_scope(const std::string& name) {
  scope_names.push_back(name);
}

void pop_scope() {
  scope_names.pop_back();
}

const std::vector<std::string>& scope_stack() {
  return scope_names;
}

}  // namespace trireme::internal
