#include "trireme/graph/function.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/DefaultDtype.h>

#include <atomic>
#include <fstream>
#include <list>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/logging.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/graph/device_scope.h"
#include "trireme/graph/kernels.h"
#include "trireme/graph/random.h"
#include "trireme/graph/replay.h"
#include "trireme/graph/scope.h"
#include "trireme/graph/self_check.h"
#include "trireme/graph/training_modes.h"
#include "trireme/graph/variable_home.h"

namespace trireme {
namespace {

std::atomic<bool> eagerly = false;

constexpr int kRetracesBeforeWarning = 5;

}  // namespace

void run_eagerly(bool on) {
  eagerly = on;
}

bool runs_eagerly() {
  return eagerly;
}

Scope::Scope(const std::string& name) {
  internal::push_scope(name);
}

Scope::~Scope() {
  internal::pop_scope();
}

namespace internal {
namespace {

// A captured graph and what it holds for.
struct Entry {
  std::string key;
  TrainingModes modes;
  std::shared_ptr<const Plan> plan;
  std::vector<std::shared_ptr<VariableRecord>> variables;
  std::vector<const c10::StorageImpl*> storages;  // of the variables
  std::vector<ExternalTensor> externals;
  FunctionCore::Shape shape;
  std::string remote;                  // what of it the program itself cannot run
  std::shared_ptr<VariableHome> home;  // of those variables that are not in the program

  // Whether the program's state outside of the signature is what it was. A variable with other
  // memory was given another dtype or device; a constant's source may have new contents.
  bool holds() const {
    for (size_t i = 0; i < variables.size(); ++i) {
      if (variables[i]->tensor.storage().unsafeGetStorageImpl() != storages[i]) return false;
    }
    for (const ExternalTensor& external : externals) {
      if (external.changed()) return false;
    }
    return true;
  }
};

// What of the graph the program itself cannot run, for people; empty: nothing.
std::string remote_part(const proto::GraphDef& def) {
  const auto remote = [](const std::string& device) {
    return !device.empty() && is_remote(DeviceSpec::parse(device));
  };
  for (const proto::Variable& variable : def.variables()) {
    if (remote(variable.device())) {
      return absl::StrCat("variable '", variable.name(), "' on '", variable.device(), "'");
    }
  }
  for (const proto::Node& node : def.nodes()) {
    if (remote(node.device())) {
      return absl::StrCat("operator '", node.op(), "' on '", node.device(), "'");
    }
  }
  return "";
}

std::string key_of(const std::vector<std::string>& arguments) {
  std::string key = absl::StrJoin(arguments, ";");
  absl::StrAppend(&key, c10::GradMode::is_enabled() ? "|g" : "|n",
                  c10::get_default_dtype_as_scalartype() == at::kFloat ? "" : "|d");
  return key;
}

}  // namespace

struct FunctionCore::Impl {
  std::string name;
  FunctionOptions options;
  std::atomic<uint64_t> step = 0;

  mutable Mutex mutex;
  // The most recently used first.
  std::list<std::shared_ptr<const Entry>> cache ABSL_GUARDED_BY(mutex);
  int captures ABSL_GUARDED_BY(mutex) = 0;
  std::vector<std::string> last_arguments ABSL_GUARDED_BY(mutex);

  uint64_t seed() const { return options.seed.value_or(current_seed()); }

  std::shared_ptr<const Entry> find(const std::string& key) {
    MutexLock lock(mutex);
    for (auto entry = cache.begin(); entry != cache.end(); ++entry) {
      if ((*entry)->key != key || !(*entry)->modes.still_hold()) continue;
      if (!(*entry)->holds()) {
        cache.erase(entry);
        return nullptr;
      }
      cache.splice(cache.begin(), cache, entry);
      return cache.front();
    }
    return nullptr;
  }

  std::shared_ptr<const Entry> capture_now(const std::string& key,
                                           const std::vector<at::Tensor>& tensors,
                                           const std::vector<std::string>& arguments,
                                           const Body& body, const Shape& shape) {
    check_arguments(tensors);
    auto entry = std::make_shared<Entry>();
    entry->key = key;
    entry->modes = TrainingModes::now();
    CheckedCapture checked = capture_and_check(
        body, tensors, {.name = name, .seed = seed(), .step = step}, options.check_capture);
    entry->plan = std::move(checked.plan);
    entry->variables = std::move(checked.captured.variables);
    entry->externals = std::move(checked.captured.externals);
    entry->shape = shape;
    entry->remote = remote_part(entry->plan->graph->def);
    entry->home = home_of(entry->variables);
    for (const auto& variable : entry->variables) {
      entry->storages.push_back(variable->tensor.storage().unsafeGetStorageImpl());
    }
    MutexLock lock(mutex);
    note_capture(arguments);
    cache.push_front(entry);
    if (cache.size() > options.cached_signatures) cache.pop_back();
    return entry;
  }

  std::shared_ptr<const FunctionStep> next_step(const Entry& entry,
                                                const std::vector<at::Tensor>& tensors) {
    auto made = std::make_shared<FunctionStep>();
    made->function = name;
    made->plan = entry.plan;
    made->variables = entry.variables;
    made->inputs = tensors;
    made->seed = seed();
    made->step = step++;
    made->shape = entry.shape;
    return made;
  }

  std::shared_ptr<VariableHome> home_of(
      const std::vector<std::shared_ptr<VariableRecord>>& variables) const {
    std::shared_ptr<VariableHome> home;
    for (const auto& variable : variables) {
      if (variable->home == nullptr) continue;
      if (home != nullptr && home != variable->home) {
        throw Error(ErrorCode::kInvalidArgument,
                    absl::StrCat("it uses variables of two clusters of parameter servers, '",
                                 variable->name, "' among them; one function can use one"),
                    {"", absl::StrCat("function '", name, "'")});
      }
      home = variable->home;
    }
    return home;
  }

  void check_arguments(const std::vector<at::Tensor>& tensors) const {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].defined() && tensors[i].requires_grad() && !tensors[i].is_leaf()) {
        throw Error(ErrorCode::kInvalidArgument,
                    absl::StrCat("tensor ", i,
                                 " of its arguments has an autograd history, which a captured "
                                 "function would cut off. Pass it detached, or make what comes "
                                 "before part of the function"),
                    {"", absl::StrCat("function '", name, "'")});
      }
    }
  }

  void note_capture(const std::vector<std::string>& arguments)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    // The first capture is no retrace.
    if (captures++ == kRetracesBeforeWarning) {
      std::string which = "nothing in the arguments: the training mode or a constant's source";
      for (size_t i = 0; i < arguments.size() && i < last_arguments.size(); ++i) {
        if (arguments[i] == last_arguments[i]) continue;
        which = absl::StrCat("argument ", i, ": ", last_arguments[i], " before, ", arguments[i],
                             " now");
        break;
      }
      log_warning("function '", name, "' was captured again for the ", kRetracesBeforeWarning,
                  "th time, which is slow. What differs is ", which,
                  ". Pad batches to one shape, and pass numbers that change as tensors.");
    }
    last_arguments = arguments;
  }

  std::shared_ptr<const Entry> entry_for(const std::vector<at::Tensor>& tensors,
                                         const std::vector<std::string>& arguments,
                                         const Body& body, const Shape& shape) {
    const std::string key = key_of(arguments);
    if (auto found = find(key)) return found;
    return capture_now(key, tensors, arguments, body, shape);
  }
};

FunctionCore::FunctionCore(std::string name, FunctionOptions options)
    : impl_(std::make_unique<Impl>()) {
  prepare_kernels();
  impl_->name = std::move(name);
  impl_->options = std::move(options);
}

FunctionCore::~FunctionCore() = default;

FunctionCore::Result FunctionCore::run(const std::vector<at::Tensor>& tensors,
                                       const std::vector<std::string>& arguments, const Body& body,
                                       const Shape& shape, const StepOptions& options) {
  const OwnWork own;
  const auto entry = impl_->entry_for(tensors, arguments, body, shape);
  if (!entry->remote.empty()) {
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("it has ", entry->remote,
                             ", which this program cannot reach by itself; run the function with "
                             "tr::Session(target).run(function, arguments...)"),
                {"", absl::StrCat("function '", impl_->name, "'")});
  }
  if (entry->home != nullptr) {
    const auto step = impl_->next_step(*entry, tensors);
    return {entry->home->run(*step, options), entry->shape};
  }
  std::vector<at::Tensor> variables;
  variables.reserve(entry->variables.size());
  for (const auto& variable : entry->variables) variables.push_back(variable->tensor);
  const uint64_t step = impl_->step++;
  at::Generator generator;
  if (entry->plan->graph->def.random()) generator = make_step_generator(impl_->seed(), step);
  OperatorTrace trace;
  ReplayOptions replay_options;
  replay_options.stop = options.stop;
  replay_options.check_numerics = options.check_numerics;
  if (!options.trace_file.empty()) replay_options.trace = &trace;
  for (size_t i = 0; i < variables.size(); ++i) {
    if (entry->plan->variable_written[i]) ++entry->variables[i]->replays;
  }
  Result result{value_or_throw(
                    replay(*entry->plan, tensors, variables, std::move(generator), replay_options)),
                entry->shape};
  if (replay_options.trace != nullptr) {
    std::ofstream(options.trace_file) << trace.chrome_json();
  }
  return result;
}

std::shared_ptr<const FunctionStep> FunctionCore::step(const std::vector<at::Tensor>& tensors,
                                                       const std::vector<std::string>& arguments,
                                                       const Body& body, const Shape& shape) {
  const OwnWork own;
  return impl_->next_step(*impl_->entry_for(tensors, arguments, body, shape), tensors);
}

Graph FunctionCore::graph(const std::vector<at::Tensor>& tensors,
                          const std::vector<std::string>& arguments, const Body& body,
                          const Shape& shape) {
  const OwnWork own;
  return Graph(impl_->entry_for(tensors, arguments, body, shape)->plan);
}

void FunctionCore::run_eagerly(const std::function<void()>& body) {
  // The program's own random numbers go on undisturbed after it.
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  at::Tensor before;
  {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    before = generator.get_state();
  }
  seed_step(impl_->seed(), impl_->step++);
  const auto restore = [&] {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(before);
  };
  try {
    body();
  } catch (...) {
    restore();
    throw;
  }
  restore();
}

void FunctionCore::set_step(uint64_t step) {
  impl_->step = step;
}

uint64_t FunctionCore::step() const {
  return impl_->step;
}

int FunctionCore::captures() const {
  MutexLock lock(impl_->mutex);
  return impl_->captures;
}

bool is_inlined() {
  return is_capturing();
}

at::Tensor own_result(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  for (const auto& variable : live_variables()) {
    if (tensor.has_storage() && tensor.is_alias_of(variable->tensor)) {
      return tensor.detach().clone();
    }
  }
  return tensor.detach();
}

void append_tensor_signature(const at::Tensor& tensor, std::string& signature) {
  if (!tensor.defined()) {
    signature += "undefined";
    return;
  }
  absl::StrAppend(&signature, c10::toString(tensor.scalar_type()), "[",
                  absl::StrJoin(tensor.sizes(), ", "), "]");
  if (!tensor.is_sparse() && !tensor.is_contiguous()) {
    absl::StrAppend(&signature, " strides [", absl::StrJoin(tensor.strides(), ", "), "]");
  }
  if (tensor.is_sparse()) signature += " sparse";
  if (!tensor.device().is_cpu()) absl::StrAppend(&signature, " on ", tensor.device().str());
  if (tensor.requires_grad()) signature += " needs gradients";
}

}  // namespace internal
}  // namespace trireme
