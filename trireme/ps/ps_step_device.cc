#include "trireme/ps/ps_step_device.h"

#include "trireme/base/status.h"
#include "trireme/placement/device_graph.h"
#include "trireme/placement/local_devices.h"

namespace trireme::internal {

absl::Status assign_to_worker(const DeviceList& devices, PsStep& program) {
  if (accelerator_count() == 0 || devices.gpus == 0) return absl::OkStatus();
  DeviceGraphOptions options;
  options.default_device = hardware_of(DeviceType::kGpu, 0);
  for (int i = 0; i < devices.gpus; ++i) {
    options.replica_devices.push_back(hardware_of(DeviceType::kGpu, i));
  }
  options.variable_devices.assign(program.plan->graph->def.variables_size(), {c10::kCPU});
  TRIREME_ASSIGN_OR_RETURN(const DeviceGraph assigned, assign_devices(*program.plan, options));
  TRIREME_ASSIGN_OR_RETURN(program.plan, compile(assigned.graph));
  program.tuner = nullptr;  // the devices work in parallel anyway
  return absl::OkStatus();
}

}  // namespace trireme::internal
