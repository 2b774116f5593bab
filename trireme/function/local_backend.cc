#include "trireme/function/local_backend.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/capture/memory_lock.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/function/replay_step.h"
#include "trireme/placement/local_devices.h"

namespace trireme::internal {
namespace {

// The contents of a variable on accelerators, by device; empty until they are needed.
struct DeviceCopies {
  std::map<std::string, at::Tensor> tensors;
};

c10::Device hardware_behind(const DeviceSpec& device) {
  return hardware_of(device.type.value_or(DeviceType::kCpu), device.index.value_or(0));
}

std::vector<std::string> names_of(const std::vector<DeviceSpec>& devices) {
  std::vector<std::string> names;
  for (const DeviceSpec& device : devices) names.push_back(device.to_string());
  return names;
}

[[noreturn]] void throw_applies_nothing() {
  throw Error(ErrorCode::kInternal, "gradients of local variables are applied by operators");
}

}  // namespace

LocalBackend::LocalBackend(std::vector<DeviceSpec> replicas, std::vector<DeviceSpec> variables)
    : names_(names_of(variables)) {
  for (const DeviceSpec& device : replicas) replica_devices_.push_back(hardware_behind(device));
  for (const DeviceSpec& device : variables) {
    const c10::Device hardware = hardware_behind(device);
    if (std::ranges::find(variable_devices_, hardware) == variable_devices_.end()) {
      variable_devices_.push_back(hardware);
    }
  }
}

void LocalBackend::adopt(const std::shared_ptr<VariableRecord>& variable) {
  variable->backend_state = std::make_shared<DeviceCopies>();
}

std::vector<std::string> LocalBackend::devices(const VariableRecord&) {
  return names_;
}

std::vector<at::Tensor> LocalBackend::copies_of(const VariableRecord& variable) {
  MutexLock lock(mutex_);
  auto& kept = static_cast<DeviceCopies*>(variable.backend_state.get())->tensors;
  const bool first_use = kept.empty();
  std::vector<at::Tensor> copies;
  for (c10::Device device : variable_devices_) {
    if (device.is_cpu()) {
      copies.push_back(variable.tensor);
      continue;
    }
    at::Tensor& copy = kept[device.str()];
    if (!copy.defined()) copy = readable_alias(variable.tensor.detach()).to(device);
    copies.push_back(copy);
  }
  // A copy in the program's memory is up to date.
  if (first_use && std::ranges::none_of(copies, [](const auto& copy) { return copy.is_cpu(); })) {
    lock_memory(variable.tensor, stale_message(variable.name, names_));
  }
  return copies;
}

at::Tensor LocalBackend::read(const VariableRecord& variable) {
  const at::Tensor first = copies_of(variable).front();
  return first.is_cpu() ? first : first.cpu();
}

void LocalBackend::change(const VariableRecord& variable, Change change, const at::Tensor& value) {
  const at::NoGradGuard no_gradients;
  for (at::Tensor& copy : copies_of(variable)) {
    const at::Tensor here = value.to(copy.device());
    change == Change::kAssign ? copy.copy_(here) : copy.add_(here);
  }
}

void LocalBackend::set_optimizer(const VariableRecords&, const std::string&,
                                 const std::map<std::string, double>&) {
  throw_applies_nothing();
}

void LocalBackend::push_gradients(const VariableRecords&, const std::vector<at::Tensor>&, double) {
  throw_applies_nothing();
}

std::shared_ptr<LocalBackend::Prepared> LocalBackend::prepare(const FunctionStep& step) {
  {
    MutexLock lock(mutex_);
    const auto known = prepared_.find(step.plan.get());
    // Another plan may have the address of one that is gone.
    if (known != prepared_.end() && known->second->captured.lock() == step.plan) {
      return known->second;
    }
  }
  DeviceGraphOptions options{.default_device = variable_devices_.front()};
  if (replica_devices_.size() > 1) options.replica_devices = replica_devices_;
  for (const auto& variable : step.variables) {
    options.variable_devices.push_back(variable->backend.get() == this
                                           ? variable_devices_
                                           : std::vector<c10::Device>{variable->tensor.device()});
  }
  auto prepared = std::make_shared<Prepared>();
  prepared->captured = step.plan;
  prepared->devices = plan_devices(*step.plan, options);
  MutexLock lock(mutex_);
  std::erase_if(prepared_, [](const auto& entry) { return entry.second->captured.expired(); });
  prepared_[step.plan.get()] = prepared;
  return prepared;
}

std::vector<at::Tensor> LocalBackend::run(const FunctionStep& step, const StepOptions& options) {
  const std::shared_ptr<Prepared> prepared = prepare(step);
  std::vector<std::vector<at::Tensor>> copies;
  for (const auto& variable : step.variables) {
    copies.push_back(variable->backend.get() == this ? copies_of(*variable)
                                                     : std::vector<at::Tensor>{variable->tensor});
  }
  const StepCall call{*step.plan, step.variables, step.inputs, step.seed, step.step};
  ReplayOptions how;
  std::vector<at::Tensor> variables;
  if (prepared->devices == nullptr) {
    for (const auto& tensors : copies) variables.push_back(tensors.front());
    how.tuner = &prepared->tuner;
    return replay_step(call, *step.plan, variables, options, how);
  }
  // The plan has the copies of a variable one after the other, in the order of the devices.
  for (const auto& tensors : copies) {
    variables.insert(variables.end(), tensors.begin(), tensors.end());
  }
  if (prepared->devices->replicas) how.replicas = &*prepared->devices->replicas;
  return replay_step(call, *prepared->devices->plan, variables, options, how);
}

}  // namespace trireme::internal
