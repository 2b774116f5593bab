#include "trireme/ps/ps_step_device.h"

#include <utility>

#include "trireme/base/status.h"
#include "trireme/function/device_plan.h"
#include "trireme/placement/device_graph.h"
#include "trireme/placement/local_devices.h"

namespace trireme::internal {
namespace {

absl::Status assign(DeviceGraphOptions options, PsStep& program) {
  options.variable_devices.assign(program.plan->graph->def.variables_size(), {c10::kCPU});
  if (needs_no_devices(*program.plan, options)) return absl::OkStatus();
  TRIREME_ASSIGN_OR_RETURN(const DeviceGraph assigned, assign_devices(*program.plan, options));
  TRIREME_ASSIGN_OR_RETURN(program.plan, compile(assigned.graph));
  program.tuner = nullptr;  // the devices work in parallel anyway
  return absl::OkStatus();
}

}  // namespace

absl::Status assign_to_worker(const DeviceList& devices, PsStep& program) {
  if (accelerator_count() == 0 || devices.gpus == 0) return absl::OkStatus();
  DeviceGraphOptions options{.default_device = hardware_of(DeviceType::kGpu, 0)};
  for (int i = 0; i < devices.gpus; ++i) {
    options.replica_devices.push_back(hardware_of(DeviceType::kGpu, i));
  }
  return assign(std::move(options), program);
}

absl::Status assign_to_program(PsStep& program) {
  if (accelerator_count() == 0) return absl::OkStatus();
  return assign({.default_device = default_device()}, program);
}

}  // namespace trireme::internal
