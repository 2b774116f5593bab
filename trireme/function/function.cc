// The life of a call. FunctionCore takes each call through three stages:
//
// 1. prepare() draws elements from the sources among the arguments and looks for a graph with the
//    call's signature. If there is none, it captures one: the body runs on copies, with elements of
//    the sources as inputs. How many elements that takes is not known before the body has run, so
//    drawing and capturing repeat until the numbers agree (draw_discovery.h).
// 2. check_runs_here() rejects a graph that only a cluster can run. Callers that send the step
//    elsewhere (step(), preview()) leave this out.
// 3. The step runs: in this process, or in the backend where its variables live. From here on the
//    elements are used up, even if the step fails; before, an error puts them back.
//
// No lock is held while a step runs in this process. Captures are serialised (capture.cc). Two
// threads with the same new signature may both capture it; the cache then holds two equal graphs,
// of which it uses the newer one.
#include "trireme/function/function.h"

#include <ATen/CPUGeneratorImpl.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/error.h"
#include "trireme/base/status.h"
#include "trireme/capture/device_request.h"
#include "trireme/capture/self_check.h"
#include "trireme/capture/variable_backend.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/exec/mkl_warm_up.h"
#include "trireme/exec/random.h"
#include "trireme/exec/replay.h"
#include "trireme/function/captured_graph.h"
#include "trireme/function/draw_discovery.h"
#include "trireme/function/drawn_call.h"
#include "trireme/function/function_count.h"
#include "trireme/function/module_states.h"
#include "trireme/function/replay_step.h"
#include "trireme/function/replicas.h"
#include "trireme/function/signature_cache.h"

namespace trireme::internal {

namespace {

thread_local bool in_eager_step = false;

}  // namespace

struct FunctionCore::Impl {
  Impl(std::string function, FunctionOptions function_options)
      : name(std::move(function)),
        options(std::move(function_options)),
        count(name),
        cache(name, options.cached_signatures) {}

  const std::string name;
  const FunctionOptions options;
  FunctionCount count;
  SignatureCache cache;

  uint64_t seed() const { return options.seed.value_or(current_seed()); }
  Origin origin() const { return {"", absl::StrCat("function '", name, "'")}; }

  struct Prepared {
    std::shared_ptr<const CapturedGraph> graph;
    DrawnCall call;  // puts its elements back at its end, unless keep() is called
    std::vector<at::Tensor> inputs;
  };
  Prepared prepare(const FunctionCall& call) {
    check_not_in_replica();
    Prepared result{nullptr, DrawnCall(call), {}};
    // Draw as many elements as the last call with these arguments did, which is right nearly
    // always. A source may end earlier. The shapes of its last elements may then lead to another
    // graph, in which the body asks for fewer.
    if (!call.sources.empty()) {
      result.call.adjust_up_to(
          cache.known_draws(signature_key(call.arguments), call.sources.size()));
    }
    result.graph = DrawDiscovery(name, result.call).run([&] { return graph_for(result.call); });
    result.inputs = result.call.inputs();
    return result;
  }

  // Returns nullopt if there are no more elements and the body accepts that.
  std::optional<Prepared> prepare_unless_ended(const FunctionCall& call) {
    try {
      return prepare(call);
    } catch (const EndAccepted&) {
      return std::nullopt;
    }
  }

  std::shared_ptr<const CapturedGraph> graph_for(const DrawnCall& call) {
    std::string key = signature_key(call.signatures());
    if (auto found = cache.find(key)) return found;
    return capture_now(std::move(key), call);
  }

  std::shared_ptr<const CapturedGraph> capture_now(std::string key, const DrawnCall& call) {
    const std::vector<at::Tensor> inputs = call.inputs();
    check_arguments(inputs);
    SignatureCache::Entry entry{.key = std::move(key),
                                .arguments = signature_key(call.call().arguments),
                                .draws = call.draws().counts(),
                                .graph = nullptr};
    ModuleStates modules = ModuleStates::now();
    DrawingBody body(name, call);
    CheckedCapture captured = capture_body(body, call, inputs);
    auto graph = make_captured_graph(name, std::move(captured), std::move(modules),
                                     call.call().shape, body.accepts_end());
    entry.graph = graph;
    cache.add(std::move(entry), call.signatures());
    return graph;
  }

  CheckedCapture capture_body(DrawingBody& body, const DrawnCall& call,
                              const std::vector<at::Tensor>& inputs) const {
    try {
      return capture_and_check(std::ref(body), inputs,
                               {.name = name,
                                .seed = seed(),
                                .step = count.next(),
                                .is_known_dropout = is_watched_dropout},
                               options.check_capture);
    } catch (c10::Error& error) {
      // LibTorch's own error, of a kernel that the body called.
      error.add_context(absl::StrCat("in captured function '", name, "', called with (",
                                     absl::StrJoin(call.signatures(), ", "), ")"));
      throw;
    }
  }

  void check_not_in_replica() const {
    if (!in_replica()) return;
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("it cannot run in replica ", replica_id(),
                             " of a strategy.run() outside of a captured function: it would make "
                             "its changes for this replica alone. Call strategy.run() inside of a "
                             "captured function"),
                origin());
  }

  void check_arguments(const std::vector<at::Tensor>& tensors) const {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].defined() && tensors[i].requires_grad()) {
        throw Error(ErrorCode::kInvalidArgument,
                    absl::StrCat("tensor ", i,
                                 " of its arguments needs gradients, which a captured function "
                                 "would not pass on: its replays leave no '.grad' and no autograd "
                                 "history. Pass it detached, and compute with it inside of the "
                                 "function; make it a tr::Variable if it is trained"),
                    origin());
      }
    }
  }

  void check_runs_here(const Prepared& prepared) const {
    if (!prepared.graph->remote.empty()) {
      throw Error(ErrorCode::kFailedPrecondition,
                  absl::StrCat("it has ", prepared.graph->remote,
                               ", which this program cannot reach by itself; run the function with "
                               "tr::Session(target).run(function, arguments...)"),
                  origin());
    }
    for (const auto& variable : prepared.graph->variables) {
      const std::string holder = held_elsewhere(*variable);
      if (holder.empty()) continue;
      throw Error(ErrorCode::kFailedPrecondition,
                  absl::StrCat("its variable '", variable->name, "' is held by ", holder,
                               "; run the function with session.run(function, arguments...)"),
                  origin());
    }
    for (const auto& source : prepared.call.call().sources) {
      if (source->resource() == 0) continue;
      throw Error(ErrorCode::kFailedPrecondition,
                  absl::StrCat("it draws from ", source->name(),
                               ", which this program cannot reach by itself; let a coordinator "
                               "schedule the function"),
                  origin());
    }
  }

  std::shared_ptr<FunctionStep> step_of(Prepared& prepared) const {
    auto step = std::make_shared<FunctionStep>();
    step->function = name;
    step->plan = prepared.graph->plan;
    step->variables = prepared.graph->variables;
    step->draws = prepared.call.layout(prepared.graph->accepts_end);
    step->inputs = std::move(prepared.inputs);
    step->seed = seed();
    step->step = count.next();
    step->shape = prepared.graph->shape;
    return step;
  }

  std::vector<at::Tensor> replay_here(const CapturedGraph& graph,
                                      const std::vector<at::Tensor>& inputs,
                                      const StepOptions& options) {
    const StepCall call{*graph.plan, graph.variables, inputs, seed(), count.take()};
    std::vector<at::Tensor> variables;
    variables.reserve(graph.variables.size());
    for (const auto& variable : graph.variables) variables.push_back(variable->tensor);
    ReplayOptions how;
    const DevicePlan* const devices = graph.devices();
    if (devices == nullptr) {
      how.tuner = &graph.tuner;
      return replay_step(call, *graph.plan, variables, options, how);
    }
    if (devices->replicas) how.replicas = &*devices->replicas;
    return replay_step(call, *devices->plan, variables, options, how);
  }
};

FunctionCore::FunctionCore(std::string name, FunctionOptions options)
    : impl_(std::make_unique<Impl>(std::move(name), std::move(options))) {
  warm_up_mkl();
}

FunctionCore::~FunctionCore() = default;

FunctionCore::Result FunctionCore::run(const FunctionCall& call, const StepOptions& options) {
  const SuspendDeviceCheck no_device_check;
  std::optional<Impl::Prepared> found = impl_->prepare_unless_ended(call);
  if (!found) return {{}, nullptr};
  Impl::Prepared& prepared = *found;
  const CapturedGraph& graph = *prepared.graph;
  impl_->check_runs_here(prepared);
  if (graph.backend != nullptr) {
    const auto step = impl_->step_of(prepared);
    step->step = impl_->count.take();
    prepared.call.keep();
    return {graph.backend->run(*step, options), graph.shape};
  }
  prepared.call.keep();
  return {impl_->replay_here(graph, prepared.inputs, options), graph.shape};
}

std::shared_ptr<const FunctionStep> FunctionCore::step(const FunctionCall& call) {
  const SuspendDeviceCheck no_device_check;
  std::optional<Impl::Prepared> prepared = impl_->prepare_unless_ended(call);
  if (!prepared) return nullptr;
  auto step = impl_->step_of(*prepared);
  step->step = impl_->count.take();
  prepared->call.keep();
  return step;
}

std::shared_ptr<const FunctionStep> FunctionCore::preview(const FunctionCall& call) {
  const SuspendDeviceCheck no_device_check;
  std::optional<Impl::Prepared> prepared = impl_->prepare_unless_ended(call);
  if (prepared) return impl_->step_of(*prepared);
  throw Error(ErrorCode::kEndOfData, "its iterators have too few elements left for a step",
              impl_->origin());
}

std::shared_ptr<const Plan> FunctionCore::plan(const FunctionCall& call) {
  const std::shared_ptr<const Plan> captured = preview(call)->plan;
  const auto graph = placed_in_program(captured->graph);
  return graph == captured->graph ? captured : value_or_throw(compile(graph));
}

void FunctionCore::run_eagerly(const std::function<void()>& body) {
  // The program's own random numbers continue after the step as if it had drawn none.
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  at::Tensor before;
  {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    before = generator.get_state();
  }
  seed_step(impl_->seed(), impl_->count.take());
  in_eager_step = true;
  const auto restore = [&] {
    in_eager_step = false;
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(before);
  };
  try {
    body();
  } catch (c10::Error& error) {
    restore();
    error.add_context(absl::StrCat("in function '", impl_->name,
                                   "', which runs as plain code since tr::run_eagerly(true)"));
    throw;
  } catch (...) {
    restore();
    throw;
  }
  restore();
}

void FunctionCore::set_step(uint64_t step) {
  impl_->count.set(step);
}

uint64_t FunctionCore::step() const {
  return impl_->count.next();
}

int FunctionCore::captures() const {
  return impl_->cache.captures();
}

bool is_inlined() {
  return is_capturing();
}

bool is_in_eager_step() {
  return in_eager_step;
}

at::Tensor detach_from_variables(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  for (const auto& variable : live_variables()) {
    if (tensor.has_storage() && tensor.is_alias_of(variable->tensor)) {
      return tensor.detach().clone();
    }
  }
  return tensor.detach();
}

}  // namespace trireme::internal
