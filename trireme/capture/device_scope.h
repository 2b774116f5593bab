#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "trireme/cluster/cluster_spec.h"
#include "trireme/cluster/device_spec.h"

namespace trireme {
namespace internal {
class HookScope;
}

// An operator of a captured function, or a new variable, for which a DeviceSetter chooses a device.
struct Placeable {
  bool is_variable = false;  // true for a variable, false for an operator
  std::string name;          // name of the variable, or of the operator: "aten::add.Tensor"
  uint64_t bytes = 0;        // size of the variable; 0 for an operator
};

// Chooses a device for each operator and each variable in its scope.
struct DeviceSetter {
  std::string name;  // name in explanations of a placement: "replica_device_setter"
  // Returns the device. An empty spec leaves the choice to the scopes around it. Must be
  // thread-safe if threads share the setter.
  std::function<DeviceSpec(const Placeable&)> choose;
};

// Names the device for the operators that are captured, and for the variables that are made, while
// it lives. Specs may be partial: they merge field by field, and an inner scope overrides an outer
// one.
//
//   {
//     tr::DeviceScope on("/job:ps/task:0/cpu:0");
//     tr::Variable table("table", torch::zeros({1000, 16}));  // lives on /job:ps/task:0
//   }
//
// Outside of a captured function operators run in the program itself. An operator that computes is
// therefore an error in a scope that names a job or a task. Making variables there is allowed, and
// so is making and filling the tensors that they start from. Affects only the thread that made it.
class DeviceScope {
 public:
  // Parses a spec such as "/job:ps/task:0/cpu:0". Throws Error if it is not valid.
  explicit DeviceScope(const std::string& device);
  // Names the device of a spec: tr::DeviceSpec{.job = "ps", .task = 0}.
  explicit DeviceScope(const DeviceSpec& device);
  // Asks `setter` for the device of each operator and variable.
  explicit DeviceScope(DeviceSetter setter);
  // Ends the scope. Scopes of a thread must end in the reverse order of their making.
  ~DeviceScope();

  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  std::unique_ptr<internal::HookScope> device_check_;
};

// Places the operators that are captured while it lives on the device of a tensor or a variable.
// Overrides the device scopes around it. Affects only the thread that made it.
//
//   tr::ColocationScope with(table.read());
class ColocationScope {
 public:
  // Names the device of `with`: a tensor of the captured function, or the tensor of a variable.
  explicit ColocationScope(const at::Tensor& with);
  // Ends the scope.
  ~ColocationScope();

  ColocationScope(const ColocationScope&) = delete;
  ColocationScope& operator=(const ColocationScope&) = delete;
};

// Options of replica_device_setter().
struct ReplicaDeviceSetterOptions {
  // Number of ps tasks. 0 takes the number of ps tasks in `cluster`; if that has none either, the
  // setter has no effect.
  int ps_tasks = 0;
  ClusterSpec cluster;                        // cluster whose ps tasks count if ps_tasks is 0
  std::string worker_device = "/job:worker";  // device of everything that is not a variable
  std::string ps_device = "/job:ps";          // device of variables, without the task
  // True to place each variable on the task that holds the fewest bytes so far; false to go over
  // the tasks in turn.
  bool balance_bytes = false;
};

// Returns a setter that spreads variables over the ps tasks and places all else on worker_device.
// Copies of the setter share the count of what was placed. Thread-safe.
//
//   tr::DeviceScope setter(tr::replica_device_setter({.ps_tasks = 2}));
DeviceSetter replica_device_setter(const ReplicaDeviceSetterOptions& options);

}  // namespace trireme
