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

// What is to be placed: an operator of a captured function, or a variable that is made.
struct Placeable {
  bool is_variable = false;
  std::string name;    // of the variable, or of the operator
  uint64_t bytes = 0;  // of the variable
};

// Chooses a device for each thing that comes up in its scope.
struct DeviceSetter {
  std::string name;  // for explanations: "replica_device_setter"
  std::function<DeviceSpec(const Placeable&)> choose;
};

// Says where the operators that are captured, and the variables that are made, inside of it live.
// Specs may be partial: they merge field by field, and an inner scope overrides an outer one.
//
//   tr::DeviceScope on("/job:ps/task:0/cpu:0");
//
// Outside of a captured function operators run in the program itself: there an operator that
// computes, in a scope that names a task, is an error. Making variables, and tensors to fill them
// with, is not. Belongs to the thread that made it.
class DeviceScope {
 public:
  explicit DeviceScope(const std::string& device);
  explicit DeviceScope(const DeviceSpec& device);
  explicit DeviceScope(DeviceSetter setter);
  ~DeviceScope();

  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  std::unique_ptr<internal::HookScope> watch_;
};

// Operators captured inside of it run where this tensor, or this variable, is.
class ColocationScope {
 public:
  explicit ColocationScope(const at::Tensor& with);
  ~ColocationScope();

  ColocationScope(const ColocationScope&) = delete;
  ColocationScope& operator=(const ColocationScope&) = delete;
};

struct ReplicaDeviceSetterOptions {
  int ps_tasks = 0;     // 0: the number of ps tasks in `cluster`, and if that has none, no effect
  ClusterSpec cluster;  // alternatively
  std::string worker_device = "/job:worker";
  std::string ps_device = "/job:ps";
  bool balance_bytes = false;  // each variable to the task that holds the fewest bytes so far
};

// Variables go over the ps tasks in turn, all else to worker_device.
DeviceSetter replica_device_setter(const ReplicaDeviceSetterOptions& options);

namespace internal {

// What the scopes of the calling thread ask for.
struct DeviceRequest {
  DeviceSpec device;
  at::Tensor colocate_with;  // if defined, it decides and not the device
  std::string scopes;        // their names, the outermost first; empty: there are none
};
DeviceRequest requested_device(const Placeable& what);

// Whether the program itself could not run it: it names a job or a task.
inline bool is_remote(const DeviceSpec& device) {
  return device.job.has_value() || device.task.has_value();
}

// What Trireme itself computes on tensors is not meant by the scopes around it.
class OwnWork {
 public:
  OwnWork();
  ~OwnWork();

  OwnWork(const OwnWork&) = delete;
  OwnWork& operator=(const OwnWork&) = delete;

 private:
  std::unique_ptr<HookScope> unwatched_;
};

}  // namespace internal
}  // namespace trireme
