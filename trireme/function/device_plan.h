#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "trireme/exec/replay.h"
#include "trireme/graph/plan.h"
#include "trireme/placement/device_graph.h"

namespace trireme::internal {

// A captured plan, made ready for the devices of this process. Immutable.
struct DevicePlan {
  std::shared_ptr<const Plan> plan;
  std::vector<DeviceGraph::Copy> variables;  // the variables of the plan (device_graph.h)
  std::optional<ReplicaLanes> replicas;      // nullopt if no operator belongs to a replica
};

// The device of operators in functions of this program that no scope places: the CPU unless set.
// Thread-safe. Graphs that were captured before keep theirs.
void set_default_device(c10::Device device);
c10::Device default_device();

// Returns the captured graph with the devices of this machine in place of those that operators name
// and it does not have. Warns of these, once in the process.
std::shared_ptr<const GraphData> graph_for_program(const Plan& captured);

// Returns the plan for the devices that the options name; null if the captured plan can run as it
// is. Uses graph_for_program(). Throws Error if the operators cannot be assigned to devices.
std::shared_ptr<const DevicePlan> plan_devices(const Plan& captured,
                                               const DeviceGraphOptions& options);

}  // namespace trireme::internal
