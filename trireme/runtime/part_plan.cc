#include "trireme/runtime/part_plan.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/cluster/device_spec.h"
#include "trireme/placement/device_graph.h"
#include "trireme/placement/local_devices.h"

namespace trireme::internal {

absl::StatusOr<c10::Device> device_of_variable(const std::string& variable,
                                               const std::string& device) {
  const auto spec = try_call([&] { return DeviceSpec::parse(device); });
  if (!spec.ok()) {
    return with_origin(spec.status(), {"", absl::StrCat("variable '", variable, "'")});
  }
  return hardware_of(spec->type.value_or(DeviceType::kCpu), spec->index.value_or(0));
}

PartPlan::PartPlan(std::shared_ptr<const Plan> placed)
    : placed_(std::move(placed)), has_accelerator_(accelerator_count() > 0) {}

absl::StatusOr<std::unique_ptr<PartPlan>> PartPlan::make(std::shared_ptr<const GraphData> placed) {
  TRIREME_ASSIGN_OR_RETURN(auto plan, compile(std::move(placed)));
  std::unique_ptr<PartPlan> made(new PartPlan(std::move(plan)));
  std::vector<c10::Device> devices;
  for (const proto::Variable& variable : made->placed().graph->def.variables()) {
    TRIREME_ASSIGN_OR_RETURN(devices.emplace_back(c10::kCPU),
                             device_of_variable(variable.name(), variable.device()));
  }
  TRIREME_RETURN_IF_ERROR(made->with_variables_on(devices).status());
  return made;
}

absl::StatusOr<std::shared_ptr<const Plan>> PartPlan::with_variables_on(
    const std::vector<c10::Device>& devices) {
  if (!has_accelerator_) return placed_;
  MutexLock lock(mutex_);
  if (last_ != nullptr && last_devices_ == devices) return last_;
  DeviceGraphOptions options;
  for (const c10::Device& device : devices) options.variable_devices.push_back({device});
  std::shared_ptr<const Plan> plan = placed_;
  // Names of devices in a graph from another process may not be valid. That throws.
  TRIREME_ASSIGN_OR_RETURN(const bool on_cpu,
                           try_call([&] { return needs_no_devices(*placed_, options); }));
  if (!on_cpu) {
    TRIREME_ASSIGN_OR_RETURN(const DeviceGraph assigned, assign_devices(*placed_, options));
    TRIREME_ASSIGN_OR_RETURN(plan, compile(assigned.graph));
  }
  last_ = plan;
  last_devices_ = devices;
  return plan;
}

}  // namespace trireme::internal
