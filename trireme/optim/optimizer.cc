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
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/capture/capture.h"
#include "trireme/capture/device_request.h"
#include "trireme/capture/variable_backend.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/function/replicas.h"
#include "trireme/optim/update_rule.h"

namespace trireme {

using at::Tensor;

// An optimizer's variables and state.
struct Optimizer::Bound {
  std::vector<Variable> variables;
  std::vector<std::vector<Variable>> slots;  // for each slot of the rule, parallel to `variables`
  Variable step, lr;
  // Backend that the variables live in; null for the program. With a backend the updates are made
  // there, with state beside the variables, and `slots` and `step` are not used.
  std::shared_ptr<internal::VariableBackend> backend;

  // Sends gradients to the backend, or records them in a step under capture. Takes one for each
  // variable, and skips undefined ones.
  void push(const std::vector<Tensor>& gradients) const;
};

namespace {

using VariableAccess = internal::Access<Variable>;

// Makes a variable for an optimizer's state. It stays in the program even in the scope of parameter
// servers.
Variable make_state(std::string name, const Tensor& initial, const std::string& slot_of) {
  return VariableAccess::make(
      internal::add_variable({std::move(name), initial, /*trainable=*/false, slot_of,
                              /*in_program=*/true, Aggregation::kOnlyFirstReplica}));
}

Variable number(const std::string& name, double value, at::ScalarType dtype) {
  return make_state(name, at::full({}, value, dtype), "");
}

internal::VariableRecords records_of(const std::vector<Variable>& variables) {
  internal::VariableRecords records;
  for (const Variable& variable : variables) records.push_back(VariableAccess::record(variable));
  return records;
}

// Returns the gradient with the strides of the parameter. The fused kernels ignore strides and walk
// over both in memory order.
Tensor with_layout_of(const Tensor& parameter, const Tensor& gradient) {
  if (gradient.strides() == parameter.strides()) return gradient;
  return at::empty_like(parameter).copy_(gradient);
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

Optimizer::Optimizer(std::shared_ptr<const internal::UpdateRule> rule) : rule_(std::move(rule)) {}

Optimizer::Optimizer(std::shared_ptr<const internal::UpdateRule> rule,
                     const std::vector<Variable>& variables)
    : rule_(std::move(rule)) {
  const at::NoGradGuard no_gradients;
  const internal::SuspendDeviceCheck no_device_check;
  const std::string name = rule_->name();
  Bound bound{{},
              {},
              number(name + "/step", 0, at::kFloat),
              number(name + "/lr", rule_->lr(), at::kDouble),
              nullptr};
  for (const Variable& variable : variables) {
    if (variable.trainable() && VariableAccess::record(variable)->tensor.requires_grad()) {
      bound.variables.push_back(variable);
    }
  }
  for (const Variable& variable : bound.variables) {
    const auto& backend = VariableAccess::record(variable)->backend;
    if (backend != VariableAccess::record(bound.variables[0])->backend) {
      throw Error(ErrorCode::kInvalidArgument,
                  absl::StrCat("variables '", bound.variables[0].name(), "' and '", variable.name(),
                               "' do not live in one place; make an optimizer for each place"));
    }
    bound.backend = backend;
  }
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
                                   at::full_like(value, slot.initial), variable.name()));
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
                             " optimizer was made without variables; make it with a module or "
                             "with variables to use it here"));
  }
  return *bound_;
}

void Optimizer::minimize(const Tensor& loss, MinimizeOptions options) const {
  std::vector<Tensor> parameters;
  for (const Variable& variable : bound().variables) parameters.push_back(variable.read());
  std::vector<Tensor> gradients =
      torch::autograd::grad({loss}, parameters, {}, /*retain_graph=*/std::nullopt,
                            /*create_graph=*/false, /*allow_unused=*/true);
  if (internal::in_replica()) return defer_update("minimize", std::move(gradients), options);
  if (options.clip_norm > 0) clip_grad_norm(gradients, options.clip_norm);
  apply_gradients(gradients);
}

void Optimizer::apply_gradients(const std::vector<Tensor>& gradients) const {
  const Bound& bound = this->bound();
  if (gradients.size() != bound.variables.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("got ", gradients.size(), " gradients for ", bound.variables.size(),
                             " variables"));
  }
  const at::NoGradGuard no_gradients;
  if (internal::in_replica()) {
    // The gradients are copied, since the replica may write to them afterwards.
    std::vector<Tensor> copies;
    for (const Tensor& gradient : gradients) {
      copies.push_back(gradient.defined() ? gradient.clone() : gradient);
    }
    return defer_update("apply_gradients", std::move(copies), {});
  }
  if (bound.backend != nullptr) return bound.push(gradients);
  const Tensor step = bound.step.read(), lr = bound.lr.read();
  Tensor(step).add_(1);
  // Parameters of one device and one dtype, which a fused kernel updates together.
  struct Group {
    std::vector<Tensor> parameters, gradients;
    internal::SlotTensors slots;
  };
  std::map<std::pair<std::string, at::ScalarType>, Group> groups;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const Tensor parameter = bound.variables[i].read();
    if (gradients[i].is_sparse()) {
      std::vector<Tensor> slots;
      for (const auto& slot : bound.slots) slots.push_back(slot[i].read());
      rule_->update_rows(parameter, gradients[i], slots, step, lr);
      continue;
    }
    Group& group = groups[{parameter.device().str(), parameter.scalar_type()}];
    group.slots.resize(bound.slots.size());
    group.parameters.push_back(parameter);
    group.gradients.push_back(with_layout_of(parameter, gradients[i]));
    for (size_t s = 0; s < bound.slots.size(); ++s) {
      group.slots[s].push_back(bound.slots[s][i].read());
    }
  }
  for (const auto& [key, group] : groups) {
    rule_->update(group.parameters, group.gradients, group.slots, step, lr);
  }
}

void Optimizer::defer_update(const char* call, std::vector<Tensor> gradients,
                             MinimizeOptions options) const {
  const std::vector<Variable>& variables = bound().variables;
  internal::defer(
      {.object = bound_.get(),
       .name = absl::StrCat(
           "the ", rule_->name(), " optimizer of ",
           variables.empty() ? "nothing" : absl::StrCat("variable '", variables[0].name(), "'")),
       .call = call,
       .aggregation = Aggregation::kSum,
       .values = std::move(gradients),
       .make = [optimizer = *this, options](std::vector<Tensor> sums) {
         if (options.clip_norm > 0) clip_grad_norm(sums, options.clip_norm);
         optimizer.apply_gradients(sums);
       }});
}

void Optimizer::step() const {
  std::vector<Tensor> gradients;
  for (const Variable& variable : bound().variables) gradients.push_back(variable.read().grad());
  apply_gradients(gradients);
}

void Optimizer::zero_grad() const {
  for (const Variable& variable : bound().variables) variable.read().mutable_grad() = Tensor();
}

void Optimizer::set_lr(double lr) const {
  bound().lr.assign(at::full({}, lr, at::kDouble));
}

double Optimizer::lr() const {
  return bound_ == nullptr ? rule_->lr() : bound().lr.read().item<double>();
}

const std::vector<Variable>& Optimizer::variables() const {
  return bound().variables;
}

std::vector<Variable> Optimizer::state() const {
  std::vector<Variable> state{bound().step, bound().lr};
  for (const auto& slot : bound().slots) state.insert(state.end(), slot.begin(), slot.end());
  return state;
}

Tensor clip_grad_norm(std::vector<Tensor>& gradients, double max_norm) {
  const at::NoGradGuard no_gradients;
  std::vector<Tensor> dense, norms;
  for (const Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    gradient.is_sparse() ? norms.push_back(gradient.norm()) : dense.push_back(gradient);
  }
  for (Tensor& norm : dense.empty() ? dense : at::_foreach_norm(dense, 2)) norms.push_back(norm);
  if (norms.empty()) return at::full({}, 0.0);
  const Tensor total = at::linalg_vector_norm(at::stack(norms));
  const Tensor scale = total.add(1e-6).reciprocal_().mul_(max_norm).clamp_max_(1.0);
  // Not in place, since one tensor may be the gradient of two variables.
  for (Tensor& gradient : gradients) {
    if (gradient.defined()) gradient = gradient.mul(scale);
  }
  return total;
}

void clip_each_grad_norm(std::vector<Tensor>& gradients, double max_norm) {
  for (Tensor& gradient : gradients) {
    std::vector<Tensor> one{gradient};
    clip_grad_norm(one, max_norm);
    gradient = one[0];
  }
}

void clip_grad_value(std::vector<Tensor>& gradients, double limit) {
  const at::NoGradGuard no_gradients;
  for (Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    if (!gradient.is_sparse()) {
      gradient = gradient.clamp(-limit, limit);
      continue;
    }
    // A sparse tensor may hold an element in several parts. The limit is for their sum.
    const Tensor sum = gradient.coalesce();
    gradient = at::sparse_coo_tensor(sum._indices(), sum._values().clamp(-limit, limit),
                                     sum.sizes(), sum.options(), /*is_coalesced=*/true);
  }
}

}  // namespace trireme
