#include "trireme/function/device_plan.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/base/warn_once.h"
#include "trireme/placement/existing_devices.h"
#include "trireme/placement/replica_sums.h"

namespace trireme::internal {
namespace {

std::atomic<c10::Device> chosen_device{c10::Device(c10::kCPU)};

}  // namespace

void set_default_device(c10::Device device) {
  chosen_device = device;
}

c10::Device default_device() {
  return chosen_device;
}

std::shared_ptr<const GraphData> graph_for_program(const Plan& captured) {
  const ExistingDevices existing = value_or_throw(use_devices_of_program(captured.graph));
  for (const std::string& missing : existing.missing) {
    warn_once(absl::StrCat("function '", captured.graph->def.name(), "': ", missing));
  }
  return existing.graph;
}

std::shared_ptr<const DevicePlan> plan_devices(const Plan& captured,
                                               const DeviceGraphOptions& options) {
  const std::shared_ptr<const GraphData> existing = graph_for_program(captured);
  if (needs_no_devices(captured, options)) return nullptr;
  const bool share_memory = std::ranges::all_of(options.replica_devices,
                                                [](c10::Device device) { return device.is_cpu(); });
  const auto sums = share_memory ? accumulate_products(existing) : bucket_sums(existing);
  const auto changed = sums == captured.graph ? nullptr : value_or_throw(compile(sums));
  DeviceGraph graph =
      value_or_throw(assign_devices(changed == nullptr ? captured : *changed, options));
  auto result = std::make_shared<DevicePlan>();
  result->plan = value_or_throw(compile(std::move(graph.graph)));
  result->variables = std::move(graph.variables);
  const bool has_replicas =
      std::ranges::any_of(graph.node_replicas, [](int replica) { return replica >= 0; });
  if (has_replicas) result->replicas.emplace(*result->plan, std::move(graph.node_replicas));
  return result;
}

}  // namespace trireme::internal
