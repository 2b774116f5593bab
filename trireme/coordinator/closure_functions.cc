#include "trireme/coordinator/closure_functions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/cluster/device_spec.h"
#include "trireme/coordinator/closures.pb.h"
#include "trireme/coordinator/element_account.h"
#include "trireme/coordinator/element_shapes.h"
#include "trireme/coordinator/worker_resource.h"
#include "trireme/graph/describe_node.h"
#include "trireme/graph/graph_file.h"
#include "trireme/placement/cutter.h"

// The inputs of a step's graph come from three sources: the caller's arguments, elements that a
// worker draws, and variables in the client program's memory. While a function is captured,
// StandIns provides placeholders for the elements that workers draw. draws_of() finds them among
// the inputs; closure_of() leaves them out and sends the rest in order. The worker inserts its
// elements in their places again (ClosureRun::inputs).
//
// A function is looked up by its plan first, which is cheap and finds a capture that is called
// again. Otherwise it is looked up by the content of its registration, so that an equal graph from
// another capture reuses the id that workers know. The plan that was used longest ago is evicted
// first. This also drops functions that no closure uses; workers are told to drop them with the
// next registration.
namespace trireme::internal {
namespace {

constexpr size_t kMostVariants = 16;
constexpr size_t kMostPlans = 1024;

Error refused(const FunctionStep& step, std::string why) {
  return Error(ErrorCode::kInvalidArgument, std::move(why),
               {"", absl::StrCat("function '", step.function, "'")});
}

// Throws Error if an operator of the step is in a scope that names a task, or is colocated with a
// variable on the servers. A worker runs all operators of a closure itself.
void check_devices(const FunctionStep& step) {
  const proto::GraphDef& def = step.plan->graph->def;
  const auto refuse = [&](int node, const std::string& where) {
    throw refused(step,
                  absl::StrCat(describe_node(*step.plan, node), " is in the scope of ", where,
                               ", but the worker that takes a closure runs all of it. Name a "
                               "device of that worker without a task ('/gpu:1'), leave the scope "
                               "out, or run the function with tr::Session"));
  };
  for (int i = 0; i < def.nodes_size(); ++i) {
    const proto::Node& node = def.nodes(i);
    const DeviceSpec device = DeviceSpec::parse(node.device());
    if (device.task || device.job.value_or("worker") != "worker") {
      refuse(i, absl::StrCat("device '", node.device(), "'"));
    }
    if (node.colocated_with() == 0) continue;
    const proto::Value& with = def.values(static_cast<int>(node.colocated_with()) - 1);
    if (with.source() != proto::Value::VARIABLE) continue;
    const VariableRecord& variable = *step.variables[with.index()];
    if (variable.backend == nullptr) continue;
    refuse(i, absl::StrCat("a colocation with variable '", variable.name,
                           "', which is on the parameter servers"));
  }
}

}  // namespace

void FunctionVariants::add(const std::shared_ptr<const ClosureFunction>& function) {
  MutexLock lock(mutex_);
  for (const auto& known : functions_) {
    if (known.lock() == function) return;
  }
  functions_.push_front(function);
  if (functions_.size() > kMostVariants) functions_.pop_back();
}

std::vector<std::shared_ptr<const ClosureFunction>> FunctionVariants::get() const {
  std::vector<std::shared_ptr<const ClosureFunction>> functions;
  MutexLock lock(mutex_);
  for (const auto& function : functions_) {
    if (auto held = function.lock()) functions.push_back(std::move(held));
  }
  return functions;
}

void FunctionsInUse::add(const std::shared_ptr<const ClosureFunction>& function) {
  MutexLock lock(mutex_);
  functions_[function->id] = function;
}

std::vector<uint32_t> FunctionsInUse::unused(const std::set<uint32_t>& functions) const {
  std::vector<uint32_t> unused;
  MutexLock lock(mutex_);
  for (uint32_t id : functions) {
    const auto found = functions_.find(id);
    if (found == functions_.end() || found->second.expired()) unused.push_back(id);
  }
  return unused;
}

void FunctionsInUse::erase_unused() {
  MutexLock lock(mutex_);
  std::erase_if(functions_, [](const auto& known) { return known.second.expired(); });
}

ClosurePtr ClosureFunctions::closure_of(const FunctionStep& step, const StandIns& stand_ins) {
  const std::vector<WorkerDraw> draws = draws_of(step, stand_ins);
  auto closure = std::make_shared<Closure>();
  closure->seed = step.seed;
  closure->step = step.step;
  closure->function = closure->current = function_of(step, draws);
  closure->shape = step.shape;
  closure->tensors.reserve(step.inputs.size() + closure->function->own.size());
  size_t input = 0;
  const auto add_until = [&](size_t end) {
    for (; input < end; ++input) {
      const at::Tensor& tensor = step.inputs[input];
      closure->tensors.push_back(tensor.defined() ? tensor.detach() : tensor);
    }
  };
  for (const WorkerDraw& draw : draws) {
    add_until(draw.first_input);
    input += draw.elements * draw.tensors;
    closure->resources.push_back(stand_ins.resources().at(draw.resource));
    closure->accounts.push_back(closure->resources.back()->account());
  }
  add_until(step.inputs.size());
  for (uint32_t i : closure->function->own) {
    const VariableRecord& variable = *step.variables[i];
    if (const std::string holder = held_elsewhere(variable); !holder.empty()) {
      throw refused(step, absl::StrCat("its variable '", variable.name, "' is held by ", holder,
                                       "; make it in the strategy's scope()"));
    }
    closure->tensors.push_back(variable.tensor.detach().clone());
  }
  return closure;
}

void ClosureFunctions::set_variant(Closure& closure, const FunctionStep& step,
                                   const StandIns& stand_ins) {
  const std::vector<WorkerDraw> draws = draws_of(step, stand_ins);
  const auto variant = function_of(step, draws);
  size_t tensors = step.inputs.size() + variant->own.size();
  for (const WorkerDraw& draw : draws) tensors -= draw.elements * draw.tensors;
  if (tensors != closure.tensors.size()) {
    throw refused(
        step,
        "it uses different variables of the client program, or draws a different number of "
        "elements from an iterator of the client program, if the elements that a worker "
        "draws have other shapes; make both the same for all shapes");
  }
  // All functions that this closure has had are variants of each other from now on, so that
  // workers can choose among them for the next elements.
  const auto before = std::exchange(closure.current, variant);
  if (before != variant) {
    for (const auto& known : {before, closure.function}) {
      if (known == variant) continue;
      known->variants.add(variant);
      variant->variants.add(known);
    }
  }
  closure.shape = step.shape;
  closure.resources.clear();
  const auto accounts = std::exchange(closure.accounts, {});
  for (const WorkerDraw& draw : draws) {
    closure.resources.push_back(stand_ins.resources().at(draw.resource));
    const auto known = std::ranges::find(accounts, draw.resource, &ElementAccount::resource);
    closure.accounts.push_back(known != accounts.end() ? *known
                                                       : closure.resources.back()->account());
  }
}

ClosurePtr ClosureFunctions::native_closure_of(const std::string& name,
                                               std::vector<at::Tensor> tensors) {
  auto closure = std::make_shared<Closure>();
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined()) tensor = tensor.detach();
  }
  closure->tensors = std::move(tensors);
  MutexLock lock(mutex_);
  std::shared_ptr<const ClosureFunction>& function = by_name_[name];
  if (function == nullptr) {
    auto made = std::make_shared<ClosureFunction>();
    made->id = next_id_++;
    made->name = name;
    made->answer_bytes = kSmallAnswer + 1;  // Unknown, so assume a large answer.
    RegisterFunctionRequest request;
    request.set_coordinator(coordinator_);
    request.set_function(made->id);
    request.set_native(name);
    made->registration = make_message(request);
    function = std::move(made);
    in_use_->add(function);
  }
  closure->function = closure->current = function;
  return closure;
}

std::vector<ClosureFunctions::WorkerDraw> ClosureFunctions::draws_of(const FunctionStep& step,
                                                                     const StandIns& stand_ins) {
  std::vector<WorkerDraw> draws;
  for (const StandIns::Tensor& tensor : stand_ins.tensors()) {
    const auto found = std::ranges::find_if(
        step.inputs, [&](const at::Tensor& input) { return input.is_same(tensor.stand_in); });
    draws.push_back(
        {tensor.resource, static_cast<size_t>(found - step.inputs.begin()), 1, 1, false});
  }
  for (const Draw& draw : step.draws) {
    if (draw.resource == 0 || draw.elements == 0) continue;
    draws.push_back(
        {draw.resource, draw.first_input, draw.elements, draw.tensors, draw.accepts_end});
  }
  std::ranges::sort(draws, {}, &WorkerDraw::first_input);
  return draws;
}

std::shared_ptr<const ClosureFunction> ClosureFunctions::function_of(
    const FunctionStep& step, const std::vector<WorkerDraw>& draws) {
  std::vector<size_t> drawn;
  for (const WorkerDraw& draw : draws) {
    drawn.insert(drawn.end(),
                 {draw.first_input, draw.elements, draw.tensors, draw.accepts_end ? 1u : 0u});
  }
  const Key key{step.plan, std::move(drawn)};
  MutexLock lock(mutex_);
  if (const auto* known = by_plan_.find(key)) return *known;
  auto made = std::make_shared<ClosureFunction>();
  RegisterFunctionRequest request = describe(step, *made);
  for (const WorkerDraw& draw : draws) {
    made->draws.push_back(draw.elements);
    made->accepts_end.push_back(draw.accepts_end);
    FunctionDraw* added = request.add_draws();
    added->set_first_input(static_cast<uint32_t>(draw.first_input));
    added->set_accepts_end(draw.accepts_end);
    auto next = step.inputs.begin() + static_cast<ptrdiff_t>(draw.first_input);
    for (size_t i = 0; i < draw.elements; ++i, next += static_cast<ptrdiff_t>(draw.tensors)) {
      set_shape({next, next + static_cast<ptrdiff_t>(draw.tensors)}, *added->add_elements());
    }
  }
  std::vector<at::Tensor> constants = constant_rows(*step.plan->graph);
  std::weak_ptr<const ClosureFunction>& known =
      by_content_[fingerprint_of(request.SerializeAsString(), constants)];
  std::shared_ptr<const ClosureFunction> function = known.lock();
  if (function == nullptr) {
    made->id = next_id_++;
    request.set_function(made->id);
    made->registration = make_message(request, std::move(constants));
    function = std::move(made);
    known = function;
    in_use_->add(function);
  }
  by_plan_.put(key, function);
  // Bounded, because a function that keeps getting arguments of new shapes is captured without end.
  if (!by_plan_.evict(kMostPlans).empty()) {
    std::erase_if(by_content_, [](const auto& entry) { return entry.second.expired(); });
    in_use_->erase_unused();
  }
  return function;
}

RegisterFunctionRequest ClosureFunctions::describe(const FunctionStep& step,
                                                   ClosureFunction& function) const {
  check_devices(step);
  function.name = step.function;
  function.plan = step.plan;
  const auto& def = step.plan->graph->def;
  function.answer_bytes = bytes_of(def, {def.outputs().begin(), def.outputs().end()});
  RegisterFunctionRequest request;
  request.set_coordinator(coordinator_);
  *request.mutable_def() = def;
  for (size_t i = 0; i < step.variables.size(); ++i) {
    const VariableRecord& record = *step.variables[i];
    FunctionVariable* variable = request.add_variables();
    variable->set_name(record.name);
    if (record.backend == nullptr) {
      if (record.is_remote()) {
        throw refused(step, absl::StrCat("variable '", record.name, "' is on '", record.device,
                                         "', where closures cannot reach it; make it in the "
                                         "strategy's scope()"));
      }
      if (step.plan->variable_written[i]) {
        throw refused(step, absl::StrCat("it changes variable '", record.name,
                                         "', which is in the client program's memory, where "
                                         "closures cannot reach it; make it in the strategy's "
                                         "scope()"));
      }
      function.own.push_back(static_cast<uint32_t>(i));
      continue;
    }
    if (record.backend != backend_) {
      throw refused(step, absl::StrCat("variable '", record.name,
                                       "' was made in the scope of another strategy; make it in "
                                       "the scope of the coordinator's strategy"));
    }
    const PsVariable on_servers = backend_->ps_variable(record);
    const VariableLayout& layout = on_servers.layout();
    variable->set_name(layout.name);
    for (size_t shard = 0; shard < layout.shards.size(); ++shard) {
      FunctionVariable::Shard* added = variable->add_shards();
      added->set_name(layout.shards[shard].name);
      added->set_server(static_cast<uint32_t>(layout.shards[shard].server));
      added->set_handle(on_servers.handle(shard));
    }
  }
  backend_->check_step(step);
  return request;
}

}  // namespace trireme::internal
