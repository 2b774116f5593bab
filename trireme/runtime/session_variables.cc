#include "trireme/runtime/session_variables.h"

#include <ATen/core/grad_mode.h>

#include "absl/strings/str_cat.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/capture/device_request.h"
#include "trireme/graph/graph_builder.h"

// Reads and changes of a variable outside of a function are steps of small graphs: one that returns
// the variable, or one with a single operator that writes to it. The graphs are built by hand. A
// capture would copy the variable, wait for captures of other threads, and follow the device scopes
// around the call. The graph also names the task on which the session has the variable.
//
// Lock order: mutex_, then the mutex of a variable's holders.
namespace trireme::internal {
namespace {

constexpr char kRead[] = "";  // no operator
constexpr char kAssign[] = "aten::copy_";
constexpr char kAdd[] = "aten::add_.Tensor";

std::shared_ptr<const Plan> plan_for(const VariableRecord& record, const std::string& task,
                                     const std::string& op, const at::Tensor& value) {
  GraphBuilder builder(op == kRead ? "variable.read" : "variable.assign");
  proto::GraphDef& def = builder.mutable_def();
  proto::Variable* variable = def.add_variables();
  variable->set_name(record.name);
  variable->set_trainable(record.trainable);
  variable->set_device(task);
  set_type(record.tensor, variable->mutable_type());
  const uint32_t contents = builder.add_value(proto::Value::VARIABLE, 0, record.tensor);
  if (op == kRead) {
    def.add_outputs(contents);
  } else {
    variable->set_written(true);
    def.set_inputs(1);
    const uint32_t input = builder.add_value(proto::Value::INPUT, 0, value);
    proto::Node* node = builder.add_node(op);
    node->add_arguments()->set_value(contents);
    node->add_arguments()->set_value(input);
    if (op == kAssign) {
      node->add_arguments()->set_boolean(false);  // non_blocking
    } else {
      node->add_arguments()->set_integer(1);  // alpha
    }
    node->add_results()->set_none(true);
  }
  return value_or_throw(compile(builder.finish()));
}

}  // namespace

SessionVariables::SessionVariables(std::string session, std::string container)
    : session_(std::move(session)), container_(std::move(container)) {}

void SessionVariables::hold(const std::shared_ptr<VariableRecord>& variable,
                            const std::shared_ptr<VariableHolder>& session, const std::string& task,
                            uint64_t incarnation) {
  MutexLock lock(mutex_);
  if (released_) return;
  // In a container of its own, the session still has the contents of a variable that is gone from
  // the program, so its name stays taken. A shared container may outlive any number of variables.
  if (!container_.empty()) {
    std::erase_if(seen_, [](const auto& entry) { return entry.second.expired(); });
  }
  seen_[variable->name] = variable;
  std::erase_if(held_, [](const auto& entry) { return entry.second.record.expired(); });
  Held& held = held_[variable.get()];
  if (held.task != task) held = {.record = variable, .task = task};
  // The incarnation is not known if the graph has a variable on the task but no operator.
  if (incarnation != 0) held.incarnation = incarnation;
  variable->holders.add(variable->name, variable->tensor,
                        {.holder = session,
                         .session = session_,
                         .container = container_,
                         .task = task,
                         .incarnation = held.incarnation});
}

bool SessionVariables::has_seen(const VariableRecord& variable) const {
  MutexLock lock(mutex_);
  const auto seen = seen_.find(variable.name);
  return seen != seen_.end() && seen->second.lock().get() == &variable;
}

bool SessionVariables::is_name_taken(const VariableRecord& variable) const {
  MutexLock lock(mutex_);
  const auto seen = seen_.find(variable.name);
  return container_.empty() && seen != seen_.end() && seen->second.lock().get() != &variable;
}

void SessionVariables::forget(const VariableRecord& variable) {
  MutexLock lock(mutex_);
  const auto seen = seen_.find(variable.name);
  if (seen != seen_.end() && seen->second.lock().get() == &variable) seen_.erase(seen);
}

void SessionVariables::release(const VariableHolder& session) {
  std::map<const VariableRecord*, Held> held;
  {
    MutexLock lock(mutex_);
    released_ = true;
    held.swap(held_);
  }
  for (const auto& [address, entry] : held) {
    if (const auto record = entry.record.lock()) record->holders.remove(session);
  }
}

FunctionStep SessionVariables::read_step(const VariableRecord& variable) {
  return make_step(variable, kRead, {});
}

FunctionStep SessionVariables::change_step(const VariableRecord& variable,
                                           VariableHolder::Change change, const at::Tensor& value) {
  const at::NoGradGuard no_gradients;
  const SuspendDeviceCheck no_device_check;
  const bool assigns = change == VariableHolder::Change::kAssign;
  // A sum keeps the dtype of what is added: the operator converts only the result.
  const auto dtype = assigns ? variable.tensor.scalar_type() : value.scalar_type();
  return make_step(variable, assigns ? kAssign : kAdd, value.detach().to(dtype).contiguous());
}

FunctionStep SessionVariables::make_step(const VariableRecord& variable, const std::string& op,
                                         const at::Tensor& value) {
  FunctionStep step;
  MutexLock lock(mutex_);
  const auto found = held_.find(&variable);
  const auto record = found == held_.end() ? nullptr : found->second.record.lock();
  if (record == nullptr) {
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("it was held by ", session_, ", which was closed meanwhile"),
                {"", absl::StrCat("variable '", variable.name, "'")});
  }
  auto& plan =
      found->second.plans[{op, value.defined() ? value.scalar_type() : at::ScalarType::Undefined}];
  if (plan == nullptr) plan = plan_for(variable, found->second.task, op, value);
  step.function = plan->graph->def.name();
  step.plan = plan;
  step.variables = {record};
  if (value.defined()) step.inputs = {value};
  return step;
}

void warn_of_other_holder(const VariableRecord& variable) {
  const std::string holder = held_elsewhere(variable);
  if (holder.empty()) return;
  log_warning("variable '", variable.name, "' begins in this session with the value that the ",
              "program had, although ", holder,
              ", holds another; to share it, name one container in both sessions");
}

}  // namespace trireme::internal
