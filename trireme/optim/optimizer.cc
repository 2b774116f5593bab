// The path of a gradient. An optimizer separates the rule (update_rule.h), which computes an
// update, from the place where it is computed:
//
// - Variables in the program: the update runs here, as operators on the variables and on slot
//   variables that the optimizer made for them. In a captured step these operators become part of
//   the graph. Dense gradients are grouped by device and dtype for fused kernels; sparse ones
//   update their rows one variable at a time.
// - Variables on parameter servers: gradients are pushed, and the servers run the rule beside the
//   variables. In a captured step the graph only records that a gradient is to be pushed.
//
// Step count and learning rate are variables, because a C++ number would be frozen into the graph.
// In one of several replicas gradients are deferred and summed first (replicas.h).
#include "trireme/optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/capture/capture.h"
#include "trireme/capture/device_request.h"
#include "trireme/capture/variable_backend.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/function/replicas.h"
#include "trireme/optim/clipping.h"
#include "trireme/optim/update_rule.h"
#include "trireme/tensor/format_shape.h"

namespace trireme {

using at::Tensor;

// An optimizer's variables and state.
struct Optimizer::Bound {
  std::string name;  // for errors: "the sgd optimizer of variable 'w'"
  std::vector<Variable> variables;
  std::vector<std::vector<Variable>> slots;  // for each slot of the rule, parallel to `variables`
  Variable step, lr;
  // Backend that applies the gradients of the variables; null if the updates are operators of the
  // program or of its steps. The state is then beside the variables, and `slots` and `step` are not
  // used.
  std::shared_ptr<internal::VariableBackend> backend;

  // Sends gradients to the backend, or records them in a step under capture. Takes one for each
  // variable, and skips undefined ones.
  void push(const std::vector<Tensor>& gradients) const;

  // Returns the gradients of `loss`, one for each variable. They are undefined for the variables
  // that it does not depend on, and for those that were frozen since the optimizer was made.
  std::vector<Tensor> gradients_of(const Tensor& loss) const;
  // Throws Error unless `loss` is a number that gradients can be computed of.
  void check_loss(const Tensor& loss) const;
  // Throws Error if the variables are on parameter servers and no function is being captured: the
  // program then holds only copies of them, to which no gradient flows.
  void check_has_gradients(const char* call) const;
  // Throws Error if a session holds a variable or the state and no function is being captured: an
  // update would be made to copies.
  void check_not_held(const char* call) const;
  // Returns an error of a call, which names the optimizer and the function under capture.
  Error error(ErrorCode code, const char* call, const std::string& why) const;
};

// A call of the program that applies gradients.
struct Optimizer::Call {
  const char* name;               // name of the call for errors: "minimize"
  const char* if_none = nullptr;  // error if no gradient is defined; null if that is allowed
  MinimizeOptions options = {};
};

namespace {

using VariableAccess = internal::Access<Variable>;

// Makes a variable for an optimizer's state, in this backend, or in the program if it is null,
// whatever scope is around it.
Variable make_state(std::string name, const Tensor& initial, const std::string& slot_of,
                    const std::shared_ptr<internal::VariableBackend>& backend) {
  return VariableAccess::make(
      internal::add_variable({std::move(name), initial, /*trainable=*/false, slot_of,
                              Aggregation::kOnlyFirstReplica, backend}));
}

Variable number(const std::string& name, double value, at::ScalarType dtype,
                const std::shared_ptr<internal::VariableBackend>& backend) {
  return make_state(name, at::full({}, value, dtype), "", backend);
}

// Returns the backend that all of the variables live in; null for the program.
std::shared_ptr<internal::VariableBackend> backend_of(const std::vector<Variable>& variables) {
  const auto& backend = VariableAccess::record(variables[0])->backend;
  for (const Variable& variable : variables) {
    if (VariableAccess::record(variable)->backend == backend) continue;
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("variables '", variables[0].name(), "' and '", variable.name(),
                             "' do not live in one place; make an optimizer for each place"));
  }
  return backend;
}

internal::VariableRecords records_of(const std::vector<Variable>& variables) {
  internal::VariableRecords records;
  for (const Variable& variable : variables) records.push_back(VariableAccess::record(variable));
  return records;
}

// Returns the variables among `variables` that can be trained. Throws Error if there are none.
std::vector<Variable> trainable_of(const std::string& rule,
                                   const std::vector<Variable>& variables) {
  std::vector<Variable> trainable;
  for (const Variable& variable : variables) {
    if (variable.trainable() && VariableAccess::record(variable)->tensor.requires_grad()) {
      trainable.push_back(variable);
    }
  }
  if (!trainable.empty()) return trainable;
  const std::string why =
      variables.empty()
          ? " optimizer was given no variables; make it with a module that has parameters, or with "
            "variables"
          : absl::StrCat(" optimizer was given variables of which none is trainable, '",
                         variables[0].name(),
                         "' among them; give it variables of a floating-point dtype that are made "
                         "with VariableOptions::trainable, or a module with parameters that are "
                         "not frozen (requires_grad)");
  throw Error(ErrorCode::kInvalidArgument, absl::StrCat("the ", rule, why));
}

// Throws Error while a function is captured: the optimizer would exist during the capture only.
void check_not_capturing(const std::string& rule) {
  if (!internal::is_capturing()) return;
  throw Error(ErrorCode::kFailedPrecondition,
              absl::StrCat("the ", rule,
                           " optimizer was made in a captured function, where its state would be "
                           "lost after each step; make it before the function, and use it there"),
              {"", absl::StrCat("function '", internal::captured_function(), "'")});
}

// Returns copies of gradients in one of several replicas, and otherwise the gradients themselves: a
// replica's gradients are applied later, and it may write to them before.
std::vector<Tensor> kept_in_replica(std::vector<Tensor> gradients) {
  if (!internal::in_replica()) return gradients;
  const at::NoGradGuard no_gradients;
  for (Tensor& gradient : gradients) {
    if (gradient.defined()) gradient = gradient.clone();
  }
  return gradients;
}

// Returns the gradient with the strides of the parameter. The fused kernels ignore strides and walk
// over both in memory order.
Tensor with_layout_of(const Tensor& parameter, const Tensor& gradient) {
  if (gradient.strides() == parameter.strides() && gradient.device() == parameter.device()) {
    return gradient;
  }
  return at::empty_like(parameter).copy_(gradient);
}

// Returns the contents of a variable, to be changed or differentiated where they are. In a device
// scope outside of functions, read() may return a copy on another device.
Tensor in_place(const Variable& variable) {
  const internal::SuspendDeviceCheck no_device_check;
  return variable.read();
}

}  // namespace

void Optimizer::Bound::push(const std::vector<Tensor>& gradients) const {
  if (!internal::is_capturing()) {
    std::vector<Variable> changed;
    std::vector<Tensor> defined;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      changed.push_back(variables[i]);
      defined.push_back(gradients[i]);
    }
    return backend->push_gradients(records_of(changed), defined, lr.read().item<double>());
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    internal::record_gradient(variables[i].read(), gradients[i], lr.read());
  }
}

std::vector<Tensor> Optimizer::Bound::gradients_of(const Tensor& loss) const {
  std::vector<Tensor> parameters;
  std::vector<size_t> places;  // for each parameter, the index of its variable
  for (size_t i = 0; i < variables.size(); ++i) {
    Tensor parameter = in_place(variables[i]);
    if (!parameter.requires_grad()) continue;
    parameters.push_back(std::move(parameter));
    places.push_back(i);
  }
  std::vector<Tensor> gradients(variables.size());
  if (parameters.empty()) return gradients;
  const std::vector<Tensor> found =
      torch::autograd::grad({loss}, parameters, {}, /*retain_graph=*/std::nullopt,
                            /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < found.size(); ++i) gradients[places[i]] = found[i];
  return gradients;
}

void Optimizer::Bound::check_loss(const Tensor& loss) const {
  if (!loss.defined()) {
    throw error(ErrorCode::kInvalidArgument, "minimize", "the loss is an undefined tensor");
  }
  if (loss.numel() != 1) {
    throw error(ErrorCode::kInvalidArgument, "minimize",
                absl::StrCat("the loss has the shape ", format_shape(loss.sizes()),
                             ", but must be a single number; use its mean() or sum()"));
  }
  if (loss.requires_grad()) return;
  throw error(ErrorCode::kFailedPrecondition, "minimize",
              at::GradMode::is_enabled()
                  ? "the loss needs no gradient: it does not depend on any variable that is not "
                    "frozen. Compute it with the module that the optimizer was made for, without "
                    "detach() and outside of torch::NoGradGuard"
                  : "the loss needs no gradient, because gradients are switched off; compute it "
                    "outside of torch::NoGradGuard");
}

void Optimizer::Bound::check_has_gradients(const char* call) const {
  check_not_held(call);
  if (backend == nullptr || internal::is_capturing()) return;
  throw error(ErrorCode::kFailedPrecondition, call,
              "its variables are on parameter servers, and the program has no gradients of them "
              "outside of a captured function. Call it in a function made by tr::function(), or "
              "pass gradients of your own to apply_gradients()");
}

void Optimizer::Bound::check_not_held(const char* call) const {
  if (backend != nullptr || internal::is_capturing()) return;
  const auto check = [&](const Variable& variable) {
    const std::string holder = internal::held_elsewhere(*VariableAccess::record(variable));
    if (holder.empty()) return;
    throw error(ErrorCode::kFailedPrecondition, call,
                absl::StrCat("variable '", variable.name(), "' is held by ", holder,
                             "; call it in a function that session.run() runs"));
  };
  for (const Variable& variable : variables) check(variable);
  check(step);
  check(lr);
}

Error Optimizer::Bound::error(ErrorCode code, const char* call, const std::string& why) const {
  const std::string function = internal::captured_function();
  return Error(code,
               absl::StrCat(call, "()",
                            function.empty() ? "" : absl::StrCat(" in function '", function, "'"),
                            ": ", why),
               {"", name});
}

Optimizer::Optimizer(std::shared_ptr<const internal::UpdateRule> rule) : rule_(std::move(rule)) {}

Optimizer::Optimizer(std::shared_ptr<const internal::UpdateRule> rule,
                     const std::vector<Variable>& variables)
    : rule_(std::move(rule)) {
  const at::NoGradGuard no_gradients;
  const internal::SuspendDeviceCheck no_device_check;
  const std::string name = rule_->name();
  check_not_capturing(name);
  std::vector<Variable> trainable = trainable_of(name, variables);
  const auto backend = backend_of(trainable);
  const bool applies = backend != nullptr && backend->applies_gradients();
  const auto beside = applies ? nullptr : backend;  // where the state is
  Bound bound{absl::StrCat("the ", name, " optimizer of variable '", trainable[0].name(), "'"),
              std::move(trainable),
              {},
              number(name + "/step", 0, at::kFloat, beside),
              number(name + "/lr", rule_->lr(), at::kDouble, beside),
              applies ? backend : nullptr};
  if (bound.backend != nullptr) {
    bound.backend->set_optimizer(records_of(bound.variables), name, rule_->options());
    bound_ = std::make_shared<const Bound>(std::move(bound));
    return;
  }
  for (const internal::Slot& slot : rule_->slots()) {
    std::vector<Variable>& tensors = bound.slots.emplace_back();
    for (const Variable& variable : bound.variables) {
      const Tensor value = VariableAccess::record(variable)->tensor.detach();
      tensors.push_back(make_state(absl::StrCat(variable.name(), "/", name, "/", slot.name),
                                   at::full_like(value, slot.initial), variable.name(), beside));
    }
  }
  bound_ = std::make_shared<const Bound>(std::move(bound));
}

Optimizer Optimizer::bind(const std::vector<Variable>& variables) const {
  return Optimizer(rule_, variables);
}

const Optimizer::Bound& Optimizer::bound() const {
  if (bound_ == nullptr) {
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("this ", rule_->name(),
                             " optimizer is a recipe, made without variables; make it with a "
                             "module or with variables, or use the optimizer that its bind() "
                             "returns"));
  }
  return *bound_;
}

void Optimizer::minimize(const Tensor& loss, MinimizeOptions options) const {
  minimize_as(loss, options, /*as_zeros=*/false);
}

void Optimizer::minimize_as(const Tensor& loss, const MinimizeOptions& options,
                            bool as_zeros) const {
  bound().check_has_gradients("minimize");
  bound().check_loss(loss);
  std::vector<Tensor> gradients = bound().gradients_of(loss);
  if (as_zeros) internal::set_to_zeros(gradients);
  update({.name = "minimize",
          .if_none = "the loss does not depend on any of its variables, or all of them are frozen. "
                     "Compute the loss with the module that the optimizer was made for, without "
                     "detach() and outside of torch::NoGradGuard",
          .options = options},
         std::move(gradients));
}

void Optimizer::apply_gradients(const std::vector<Tensor>& gradients) const {
  const Bound& bound = this->bound();
  if (gradients.size() != bound.variables.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("got ", gradients.size(), " gradients for ", bound.variables.size(),
                             " variables"),
                {"", bound.name});
  }
  bound.check_not_held("apply_gradients");
  update({.name = "apply_gradients"}, kept_in_replica(gradients));
}

void Optimizer::apply(const std::vector<Tensor>& gradients) const {
  const Bound& bound = this->bound();
  const at::NoGradGuard no_gradients;
  if (bound.backend != nullptr) return bound.push(gradients);
  // Before anything changes.
  const auto is_sparse = [](const Tensor& gradient) {
    return gradient.defined() && gradient.is_sparse();
  };
  if (std::ranges::any_of(gradients, is_sparse)) rule_->check_rows();
  const Tensor step = in_place(bound.step), lr = in_place(bound.lr);
  Tensor(step).add_(1);
  // Parameters of one device and one dtype, which a fused kernel updates together.
  struct Group {
    std::vector<Tensor> parameters, gradients;
    internal::SlotTensors slots;
  };
  std::map<std::pair<std::string, at::ScalarType>, Group> groups;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const Tensor parameter = in_place(bound.variables[i]);
    if (gradients[i].is_sparse()) {
      std::vector<Tensor> slots;
      for (const auto& slot : bound.slots) slots.push_back(in_place(slot[i]));
      rule_->update_rows(parameter, gradients[i], slots, step, lr);
      continue;
    }
    Group& group = groups[{parameter.device().str(), parameter.scalar_type()}];
    group.slots.resize(bound.slots.size());
    group.parameters.push_back(parameter);
    group.gradients.push_back(with_layout_of(parameter, gradients[i]));
    for (size_t s = 0; s < bound.slots.size(); ++s) {
      group.slots[s].push_back(in_place(bound.slots[s][i]));
    }
  }
  for (const auto& [key, group] : groups) {
    rule_->update(group.parameters, group.gradients, group.slots, step, lr);
  }
}

// In one of several replicas the update is deferred, to be made with the sums of the gradients. A
// single replica may have no gradient, but not all of them.
void Optimizer::update(const Call& call, std::vector<Tensor> gradients) const {
  const Bound& bound = this->bound();
  if (internal::in_replica()) {
    return internal::defer({.object = bound_.get(),
                            .name = bound.name,
                            .call = call.name,
                            .aggregation = Aggregation::kSum,
                            .values = std::move(gradients),
                            .are_gradients = true,
                            .make = [optimizer = *this, call](const std::vector<Tensor>& sums) {
                              optimizer.update(call, sums);
                            }});
  }
  const auto is_defined = [](const Tensor& gradient) { return gradient.defined(); };
  if (call.if_none != nullptr && std::ranges::none_of(gradients, is_defined)) {
    throw bound.error(ErrorCode::kFailedPrecondition, call.name, call.if_none);
  }
  if (call.options.clip_norm > 0) clip_grad_norm(gradients, call.options.clip_norm);
  apply(gradients);
}

void Optimizer::step() const {
  bound().check_has_gradients("step");
  std::vector<Tensor> gradients;
  for (const Variable& variable : bound().variables) gradients.push_back(in_place(variable).grad());
  update({.name = "step",
          .if_none = "no variable has a gradient in `.grad`. Call backward() before it, in the "
                     "same function if it is captured, or use minimize(loss)"},
         kept_in_replica(std::move(gradients)));
}

void Optimizer::zero_grad() const {
  // A gradient belongs to the tensor in the program, wherever the variable lives.
  for (const Variable& variable : bound().variables) {
    VariableAccess::record(variable)->tensor.mutable_grad() = Tensor();
  }
}

void Optimizer::set_lr(double lr) const {
  bound().lr.assign(at::full({}, lr, at::kDouble));
}

double Optimizer::lr() const {
  return bound_ == nullptr ? rule_->lr() : bound().lr.read().item<double>();
}

const Schedule& Optimizer::schedule() const {
  return rule_->rate().schedule();
}

const std::vector<Variable>& Optimizer::variables() const {
  return bound().variables;
}

std::vector<Variable> Optimizer::state() const {
  std::vector<Variable> state{bound().step, bound().lr};
  for (const auto& slot : bound().slots) state.insert(state.end(), slot.begin(), slot.end());
  return state;
}

const Variable& internal::Access<Optimizer>::step(const Optimizer& optimizer) {
  return optimizer.bound().step;
}

const std::vector<std::vector<Variable>>& internal::Access<Optimizer>::slots(
    const Optimizer& optimizer) {
  return optimizer.bound().slots;
}

std::vector<Tensor> internal::Access<Optimizer>::gradients_of(const Optimizer& optimizer,
                                                              const Tensor& loss) {
  return optimizer.bound().gradients_of(loss);
}

void internal::Access<Optimizer>::minimize_as_zeros(const Optimizer& optimizer, const Tensor& loss,
                                                    const MinimizeOptions& options) {
  optimizer.minimize_as(loss, options, /*as_zeros=*/true);
}

// Not a product with zero, which leaves a NaN as it is.
void internal::set_to_zeros(std::vector<Tensor>& gradients) {
  for (Tensor& gradient : gradients) {
    if (gradient.defined()) gradient = at::zeros_like(gradient);
  }
}

}  // namespace trireme
