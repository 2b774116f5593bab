#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "trireme/cluster/device_spec.h"

// The device scopes (device_scope.h) as the library sees them.
namespace trireme {

struct Placeable;

namespace internal {

class HookScope;

// The device that the scopes of a thread ask for.
struct DeviceRequest {
  DeviceSpec device;
  at::Tensor colocate_with;  // if defined, its device is used and `device` is ignored
  std::string scopes;        // names of the scopes, the outermost first; empty if there are none
};
// Returns the device that the scopes of the calling thread ask for.
DeviceRequest requested_device(const Placeable& what);

// Returns the names of the device scopes that the calling thread is in, the outermost first; empty
// if there are none.
std::string device_scope_names();

// Returns the hardware that the scopes of the calling thread name for code that runs in the
// program: the innermost colocation's, or the local device's; nullopt if they name none, or a task.
// Does not ask setters, which are for captured operators and variables. Warns, once in the process,
// of a device that does not exist; the nearest one takes its place.
std::optional<c10::Device> eager_device();

// Returns true if `device` names a job or a task, so that the program itself cannot run there.
inline bool is_remote(const DeviceSpec& device) {
  return device.job.has_value() || device.task.has_value();
}

// Lets operators of the calling thread run in the program while it lives, whatever DeviceScope is
// around them. For tensors that Trireme itself computes: device scopes are meant for the operators
// of the user.
class SuspendDeviceCheck {
 public:
  SuspendDeviceCheck();
  ~SuspendDeviceCheck();

  SuspendDeviceCheck(const SuspendDeviceCheck&) = delete;
  SuspendDeviceCheck& operator=(const SuspendDeviceCheck&) = delete;

 private:
  std::unique_ptr<HookScope> suspended_hook_;
};

// Returns the number of device scopes that the calling thread is in.
size_t device_scope_count();

// Leaves only the `keep` outermost device scopes of the calling thread while it lives. The operator
// hook of a scope stays.
class SuspendDeviceScopes {
 public:
  explicit SuspendDeviceScopes(size_t keep);
  ~SuspendDeviceScopes();

  SuspendDeviceScopes(const SuspendDeviceScopes&) = delete;
  SuspendDeviceScopes& operator=(const SuspendDeviceScopes&) = delete;

 private:
  const std::shared_ptr<void> suspended_;
};

}  // namespace internal
}  // namespace trireme
