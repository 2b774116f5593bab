#include "trireme/function/local_backend.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "trireme/base/error.h"
#include "trireme/base/status.h"
#include "trireme/capture/device_request.h"
#include "trireme/capture/memory_lock.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/function/replay_step.h"
#include "trireme/placement/local_devices.h"
#include "trireme/placement/memory_use.h"

namespace trireme::internal {
namespace {

// The contents of a variable on accelerators, by device; empty until they are needed.
struct DeviceCopies {
  std::map<std::string, at::Tensor> tensors;
  int64_t number = 0;  // number of the variable among those of the backend
};

c10::Device hardware_behind(const DeviceSpec& device) {
  return hardware_of(device.type.value_or(DeviceType::kCpu), device.index.value_or(0));
}

std::vector<std::string> names_of(const std::vector<DeviceSpec>& devices) {
  std::vector<std::string> names;
  for (const DeviceSpec& device : devices) names.push_back(device.to_string());
  return names;
}

int64_t number_of(const VariableRecord& variable) {
  return static_cast<const DeviceCopies*>(variable.backend_state.get())->number;
}

// Returns the name of a variable without the suffixes of names that were taken ("w_1/adam/sum"),
// which workers need not have in common.
std::string name_without_suffixes(const std::string& name) {
  std::vector<std::string> parts = absl::StrSplit(name, '/');
  for (std::string& part : parts) {
    const size_t end = part.find_last_not_of("0123456789");
    const bool has_suffix = end != std::string::npos && end + 1 < part.size() && part[end] == '_';
    if (has_suffix) part.resize(end);
  }
  return absl::StrJoin(parts, "/");
}

[[noreturn]] void throw_applies_nothing() {
  throw Error(ErrorCode::kInternal, "gradients of local variables are applied by operators");
}

[[noreturn]] void throw_made_outside(const VariableRecord& variable) {
  throw Error(ErrorCode::kFailedPrecondition,
              "it was made outside of the strategy's scope, but replicas write to it, so that the "
              "workers would have different values; make it inside of strategy.scope()",
              {"", absl::StrCat("variable '", variable.name, "'")});
}

}  // namespace

LocalBackend::LocalBackend(std::vector<DeviceSpec> replicas, std::vector<DeviceSpec> variables,
                           std::shared_ptr<WorkerGroup> workers)
    : workers_(std::move(workers)), names_(names_of(variables)) {
  for (const DeviceSpec& device : replicas) replica_devices_.push_back(hardware_behind(device));
  for (const DeviceSpec& device : variables) {
    const c10::Device hardware = hardware_behind(device);
    if (std::ranges::find(variable_devices_, hardware) == variable_devices_.end()) {
      variable_devices_.push_back(hardware);
    }
  }
}

void LocalBackend::check_device(const VariableRecord& variable) const {
  const DeviceSpec& device = variable.backend_device;
  const std::string places = absl::StrJoin(names_, ", ");
  if (is_remote(device))
    throw not_on_task(variable.name, device, absl::StrCat(places, " of this program"));
  if (!device.type) return;
  const DeviceSpec named{.type = device.type, .index = device.index.value_or(0)};
  if (std::ranges::find(names_, named.to_string()) == names_.end()) {
    warn_of_unused_device(device, places);
  }
}

void LocalBackend::adopt(const std::shared_ptr<VariableRecord>& variable) {
  const auto copies = std::make_shared<DeviceCopies>();
  variable->backend_state = copies;
  if (workers_ == nullptr) return;
  {
    MutexLock lock(mutex_);
    std::erase_if(variables_, [](const auto& entry) { return entry.second.expired(); });
    copies->number = next_variable_++;
    variables_[copies->number] = variable;
  }
  const at::NoGradGuard no_gradients;
  variable->tensor.copy_(workers_->first(
      variable->tensor, absl::StrCat("variable '", name_without_suffixes(variable->name), "'")));
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
  // A single replica is all of the step.
  const bool has_replicas = replica_devices_.size() > 1;
  DeviceGraphOptions options{.default_device = has_replicas ? variable_devices_.front()
                                                            : replica_devices_.front()};
  if (has_replicas) options.replica_devices = replica_devices_;
  for (const auto& variable : step.variables) {
    options.variable_devices.push_back(variable->backend.get() == this
                                           ? variable_devices_
                                           : std::vector<c10::Device>{variable->tensor.device()});
  }
  auto prepared = std::make_shared<Prepared>();
  prepared->captured = step.plan;
  if (workers_ == nullptr) {
    prepared->devices = plan_devices(*step.plan, options);
  } else {
    prepared->devices = plan_for_workers(step, options);
    prepared->combines = combines_over_workers(*step.plan->graph);
    const MemoryUse memory(*step.plan, replicas());
    for (uint32_t variable : memory.written_in_replicas()) {
      // Integers, such as the count of batches of batch norm, are the same on all workers.
      if (!step.variables[variable]->tensor.is_floating_point()) continue;
      if (step.variables[variable]->backend.get() != this) {
        throw_made_outside(*step.variables[variable]);
      }
      prepared->averaged.push_back(variable);
    }
  }
  MutexLock lock(mutex_);
  std::erase_if(prepared_, [](const auto& entry) { return entry.second->captured.expired(); });
  prepared_[step.plan.get()] = prepared;
  return prepared;
}

std::shared_ptr<const DevicePlan> LocalBackend::plan_for_workers(
    const FunctionStep& step, const DeviceGraphOptions& options) const {
  const auto graph = workers_->connect(*step.plan);
  const auto plan = graph == step.plan->graph ? step.plan : value_or_throw(compile(graph));
  auto devices = std::make_shared<DevicePlan>();
  if (const auto planned = plan_devices(*plan, options)) {
    *devices = *planned;
  } else {
    devices->plan = plan;
  }
  if (!devices->replicas) {
    // A worker's only replica is all of its step, but draws numbers of its own.
    std::vector<int> node_replicas;
    for (const proto::Node& node : devices->plan->graph->def.nodes()) {
      node_replicas.push_back(static_cast<int>(node.replica()) - 1);
    }
    devices->replicas.emplace(*devices->plan, std::move(node_replicas));
  }
  devices->replicas->first_replica = workers_->worker() * replicas();
  return devices;
}

// A worker that fails must not leave the others waiting for it.
std::vector<at::Tensor> LocalBackend::run(const FunctionStep& step, const StepOptions& options) {
  if (workers_ == nullptr) return run_here(step, options);
  try {
    return run_here(step, options);
  } catch (const std::exception& error) {
    workers_->fail(error.what());
    throw;
  }
}

// The graphs of the workers may differ in what they write. Batch norm, for example, leaves its
// statistics as they are if its input has no examples. But all workers must make the same calls, so
// a worker takes part with its current values.
VariableRecords LocalBackend::averaged_after(const FunctionStep& step, const Prepared& prepared) {
  VariableRecords averaged;
  for (size_t variable : prepared.averaged) averaged.push_back(step.variables[variable]);
  if (prepared.combines) {
    const VariableRecords agreed = agreed_for(step, averaged);
    averaged.insert(averaged.end(), agreed.begin(), agreed.end());
  }
  const auto number = [](const auto& variable) { return number_of(*variable); };
  std::ranges::sort(averaged, {}, number);
  const auto repeated = std::ranges::unique(averaged, {}, number);
  averaged.erase(repeated.begin(), repeated.end());
  return averaged;
}

VariableRecords LocalBackend::agreed_for(const FunctionStep& step, const VariableRecords& own) {
  VariableRecords averaged;
  const auto take = [&](const std::weak_ptr<VariableRecord>& variable) {
    if (auto record = variable.lock()) averaged.push_back(std::move(record));
  };
  const auto is_gone = [](const auto& variable) { return variable.expired(); };
  {
    MutexLock lock(mutex_);
    const auto known = agreed_.find(step.function);
    // A function with other variables may have the name of one that is gone.
    if (known != agreed_.end() && std::ranges::none_of(known->second.used, is_gone)) {
      for (const auto& variable : known->second.averaged) take(variable);
      return averaged;
    }
  }
  const at::Tensor numbers = at::empty({static_cast<int64_t>(own.size())}, at::kLong);
  for (size_t i = 0; i < own.size(); ++i) {
    numbers.mutable_data_ptr<int64_t>()[i] = number_of(*own[i]);
  }
  const at::Tensor all =
      workers_->concatenate(numbers, absl::StrCat(step.function, ": variables to average"));
  MutexLock lock(mutex_);
  Agreed& agreed = agreed_[step.function];
  agreed.used.assign(step.variables.begin(), step.variables.end());
  agreed.averaged.clear();
  for (int64_t i = 0; i < all.numel(); ++i) {
    agreed.averaged.push_back(variables_[all.const_data_ptr<int64_t>()[i]]);
    take(agreed.averaged.back());
  }
  return averaged;
}

void LocalBackend::average(const std::vector<std::shared_ptr<VariableRecord>>& variables) {
  const at::NoGradGuard no_gradients;
  std::map<at::ScalarType, std::vector<std::shared_ptr<VariableRecord>>> by_dtype;
  for (const auto& variable : variables) {
    by_dtype[variable->tensor.scalar_type()].push_back(variable);
  }
  for (const auto& [dtype, group] : by_dtype) {
    std::vector<at::Tensor> flat;
    for (const auto& variable : group) flat.push_back(read(*variable).reshape({-1}));
    const at::Tensor mean = workers_->sum(at::cat(flat), "statistics").div_(workers_->workers());
    int64_t offset = 0;
    for (const auto& variable : group) {
      const int64_t size = variable->tensor.numel();
      change(*variable, Change::kAssign,
             mean.narrow(0, offset, size).view(variable->tensor.sizes()));
      offset += size;
    }
  }
}

std::vector<at::Tensor> LocalBackend::run_here(const FunctionStep& step,
                                               const StepOptions& options) {
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
  auto results = replay_step(call, *prepared->devices->plan, variables, options, how);
  average(averaged_after(step, *prepared));
  return results;
}

}  // namespace trireme::internal
