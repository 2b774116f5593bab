#include "trireme/function/function.h"

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
#include "trireme/capture/device_scope.h"
#include "trireme/capture/self_check.h"
#include "trireme/capture/variable_home.h"
#include "trireme/exec/mkl_warm_up.h"
#include "trireme/exec/random.h"
#include "trireme/exec/replay.h"
#include "trireme/function/replicas.h"
#include "trireme/function/training_modes.h"

namespace trireme::internal {
namespace {

constexpr int kRetracesBeforeWarning = 5;
constexpr size_t kDrawAttempts = 8;

// A captured graph and what it holds for.
struct Entry {
  std::string key;
  std::string arguments;      // the part of the key that is known before elements are drawn
  std::vector<size_t> draws;  // how many elements a step draws from each source
  TrainingModes modes;
  std::shared_ptr<const Plan> plan;
  std::vector<std::shared_ptr<VariableRecord>> variables;
  std::vector<const c10::StorageImpl*> storages;  // of the variables
  std::vector<ExternalTensor> externals;
  FunctionCall::Shape shape;
  std::string remote;                  // what of it the program itself cannot run
  std::shared_ptr<VariableHome> home;  // of those variables that are not in the program
  mutable BranchTuner tuner;           // thread-safe

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

// The signatures of the arguments, with the elements that were drawn from them.
std::vector<std::string> signatures_of(const FunctionCall& call, const Draws& draws) {
  std::vector<std::string> signatures = call.arguments;
  for (size_t i = 0; i < call.sources.size(); ++i) {
    std::string& signature = signatures[call.source_arguments[i]];
    for (const Element& element : draws.elements()[i]) {
      signature += " (";
      for (const at::Tensor& tensor : element) {
        append_tensor_signature(tensor, signature);
        signature += ',';
      }
      signature += ')';
    }
  }
  return signatures;
}

std::vector<at::Tensor> inputs_of(const FunctionCall& call, const Draws& draws) {
  std::vector<at::Tensor> inputs = call.tensors;
  for (const auto& elements : draws.elements()) {
    for (const Element& element : elements) {
      inputs.insert(inputs.end(), element.begin(), element.end());
    }
  }
  return inputs;
}

Error draws_vary(const std::string& function) {
  return Error(ErrorCode::kFailedPrecondition,
               absl::StrCat("function '", function,
                            "' cannot be captured: it does not draw the same number of elements "
                            "from its iterators each time. What a step draws must follow from "
                            "its arguments"));
}

// Of a body that asked for other numbers of elements than were drawn: those to try next.
struct DrawOthers {
  std::vector<size_t> counts;
};

// The body of one capture, which sees for each source the elements that were drawn from it.
class DrawingBody {
 public:
  DrawingBody(const std::string& name, const FunctionCall& call, const Draws& draws)
      : name_(name), call_(call), draws_(draws) {}

  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs) {
    const TensorCursor::Drawn drawn = stand_ins(inputs);
    TensorCursor cursor(inputs, &drawn);
    std::vector<at::Tensor> outputs;
    bool ended = false;
    try {
      outputs = call_.body(cursor);
      ended = true;
    } catch (const DrawnElements::Exhausted&) {
    }
    check_counts(drawn, ended);
    return outputs;
  }

 private:
  TensorCursor::Drawn stand_ins(const std::vector<at::Tensor>& inputs) const {
    auto next = inputs.begin() + static_cast<ptrdiff_t>(call_.tensors.size());
    TensorCursor::Drawn drawn;
    for (size_t i = 0; i < call_.sources.size(); ++i) {
      std::vector<Element> elements;
      for (const Element& element : draws_.elements()[i]) {
        const auto end = next + static_cast<ptrdiff_t>(element.size());
        elements.emplace_back(next, end);
        next = end;
      }
      const auto& source = call_.sources[i];
      drawn[source] = std::make_shared<DrawnElements>(source->name(), std::move(elements));
    }
    return drawn;
  }

  void check_counts(const TensorCursor::Drawn& drawn, bool ended) {
    const std::vector<size_t> counts = draws_.counts();
    std::vector<size_t> asked;
    for (size_t i = 0; i < counts.size(); ++i) {
      asked.push_back(drawn.at(call_.sources[i])->asked());
      if (!ended) asked[i] = std::max(asked[i], counts[i]);  // it might have asked on
    }
    if (asked == counts) {
      settled_ = true;
    } else if (settled_) {
      throw draws_vary(name_);
    } else {
      throw DrawOthers{asked};
    }
  }

  const std::string& name_;
  const FunctionCall& call_;
  const Draws& draws_;
  bool settled_ = false;
};

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

  std::shared_ptr<const Entry> capture_now(const std::string& key, const FunctionCall& call,
                                           const Draws& draws) {
    const std::vector<at::Tensor> inputs = inputs_of(call, draws);
    check_arguments(inputs);
    auto entry = std::make_shared<Entry>();
    entry->key = key;
    entry->arguments = key_of(call.arguments);
    entry->draws = draws.counts();
    entry->modes = TrainingModes::now();
    DrawingBody body(name, call, draws);
    CheckedCapture checked =
        capture_and_check(std::ref(body), inputs, {.name = name, .seed = seed(), .step = step},
                          options.check_capture);
    entry->plan = std::move(checked.plan);
    entry->variables = std::move(checked.captured.variables);
    entry->externals = std::move(checked.captured.externals);
    entry->shape = call.shape;
    entry->remote = remote_part(entry->plan->graph->def);
    entry->home = home_of(entry->variables);
    for (const auto& variable : entry->variables) {
      entry->storages.push_back(variable->tensor.storage().unsafeGetStorageImpl());
    }
    MutexLock lock(mutex);
    note_capture(signatures_of(call, draws));
    cache.push_front(entry);
    if (cache.size() > options.cached_signatures) cache.pop_back();
    return entry;
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

  // Draws as many elements as such a call drew last. Less will do if there are not so many: their
  // shapes may be others, and the body then ask for less.
  void draw_known(const FunctionCall& call, Draws& draws) {
    const std::vector<size_t> counts = known_draws(key_of(call.arguments), call.sources.size());
    try {
      draws.adjust(counts);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kEndOfData) throw;
    }
  }

  std::vector<size_t> known_draws(const std::string& arguments, size_t sources) {
    MutexLock lock(mutex);
    for (const auto& entry : cache) {
      if (entry->arguments == arguments) return entry->draws;
    }
    return std::vector<size_t>(sources, 0);
  }

  std::shared_ptr<const Entry> entry_for(const FunctionCall& call, Draws& draws) {
    const std::string key = key_of(signatures_of(call, draws));
    if (auto found = find(key)) return found;
    return capture_now(key, call, draws);
  }

  struct Prepared {
    std::shared_ptr<const Entry> entry;
    Draws draws;  // go back unless they are kept
    std::vector<at::Tensor> inputs;
  };
  Prepared prepare(const FunctionCall& call) {
    if (in_replica()) {
      throw Error(ErrorCode::kFailedPrecondition,
                  absl::StrCat("it is called in replica ", replica_id(),
                               " of a strategy.run() that is in no function, and would make its "
                               "changes for this replica alone. Call strategy.run() inside of a "
                               "captured function"),
                  {"", absl::StrCat("function '", name, "'")});
    }
    Prepared result{nullptr, Draws(call.sources), {}};
    if (!call.sources.empty()) draw_known(call, result.draws);
    // The first element of each source, then how many there are, then shapes that change it.
    const size_t attempts = call.sources.size() + kDrawAttempts;
    for (size_t attempt = 0; result.entry == nullptr; ++attempt) {
      try {
        result.entry = entry_for(call, result.draws);
      } catch (const DrawOthers& others) {
        if (attempt == attempts) throw draws_vary(name);
        result.draws.adjust(others.counts);
      }
    }
    result.inputs = inputs_of(call, result.draws);
    return result;
  }

  std::shared_ptr<FunctionStep> step_of(const FunctionCall& call, Prepared& prepared) const {
    auto step = std::make_shared<FunctionStep>();
    step->function = name;
    step->plan = prepared.entry->plan;
    step->variables = prepared.entry->variables;
    size_t input = call.tensors.size();
    for (size_t i = 0; i < call.sources.size(); ++i) {
      const auto& elements = prepared.draws.elements()[i];
      step->draws.push_back({.argument = call.source_arguments[i],
                             .resource = call.sources[i]->resource(),
                             .elements = elements.size(),
                             .tensors = elements.empty() ? 0 : elements[0].size(),
                             .first_input = input});
      input += step->draws.back().elements * step->draws.back().tensors;
    }
    step->inputs = std::move(prepared.inputs);
    step->seed = seed();
    step->step = this->step;
    step->shape = prepared.entry->shape;
    return step;
  }
};

FunctionCore::FunctionCore(std::string name, FunctionOptions options)
    : impl_(std::make_unique<Impl>()) {
  warm_up_mkl();
  impl_->name = std::move(name);
  impl_->options = std::move(options);
}

FunctionCore::~FunctionCore() = default;

FunctionCore::Result FunctionCore::run(const FunctionCall& call, const StepOptions& options) {
  const OwnWork own;
  Impl::Prepared prepared = impl_->prepare(call);
  const auto& entry = prepared.entry;
  if (!entry->remote.empty()) {
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("it has ", entry->remote,
                             ", which this program cannot reach by itself; run the function with "
                             "tr::Session(target).run(function, arguments...)"),
                {"", absl::StrCat("function '", impl_->name, "'")});
  }
  for (const auto& source : call.sources) {
    if (source->resource() == 0) continue;
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("it draws from ", source->name(),
                             ", which this program cannot reach by itself; let a coordinator "
                             "schedule the function"),
                {"", absl::StrCat("function '", impl_->name, "'")});
  }
  if (entry->home != nullptr) {
    const auto step = impl_->step_of(call, prepared);
    step->step = impl_->step++;
    prepared.draws.keep();
    return {entry->home->run(*step, options), entry->shape};
  }
  prepared.draws.keep();
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
  replay_options.tuner = &entry->tuner;
  if (!options.trace_file.empty()) replay_options.trace = &trace;
  for (size_t i = 0; i < variables.size(); ++i) {
    if (entry->plan->variable_written[i]) ++entry->variables[i]->replays;
  }
  Result result{value_or_throw(replay(*entry->plan, prepared.inputs, variables,
                                      std::move(generator), replay_options)),
                entry->shape};
  if (replay_options.trace != nullptr) {
    std::ofstream(options.trace_file) << trace.chrome_json();
  }
  return result;
}

std::shared_ptr<const FunctionStep> FunctionCore::step(const FunctionCall& call) {
  const OwnWork own;
  Impl::Prepared prepared = impl_->prepare(call);
  auto step = impl_->step_of(call, prepared);
  step->step = impl_->step++;
  prepared.draws.keep();
  return step;
}

std::shared_ptr<const FunctionStep> FunctionCore::preview(const FunctionCall& call) {
  const OwnWork own;
  Impl::Prepared prepared = impl_->prepare(call);
  return impl_->step_of(call, prepared);
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

}  // namespace trireme::internal
