#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/cluster/device_spec.h"
#include "trireme/cluster/task_id.h"
#include "trireme/graph/plan.h"

// Decides where each operator of a graph runs and where each variable lives.
//
//   - a variable: where the scopes that it was made in say; an optimizer's state: with its variable
//   - an operator that writes: where the memory is that it writes. A view of such memory likewise
//   - a backward operator: where the operator is that it differentiates
//   - all else: where the scopes say
//   - what they leave open: task 0 of the job, the session's master task, the default device
//
// An operator over lists of tensors (`_foreach_mul_`, `_fused_adam_`) whose items are on several
// tasks is split into one for each task.
namespace trireme::internal {

struct PlacementOptions {
  TaskId master;
  std::map<TaskId, DeviceList> tasks;  // which there are
  // A device that its task lacks is replaced by one that it has; else that is an error.
  bool soft = true;
};

struct PlacedGraph {
  std::shared_ptr<const GraphData> graph;  // with devices in full, and the reason for each
  std::vector<TaskId> node_tasks;
  std::vector<TaskId> variable_tasks;
  std::vector<uint32_t> storages;            // of values, as in the plan
  std::vector<std::string> missing_devices;  // that were replaced, each once, with what stands in
};

// The error names the device, the devices that there are, and the scope that named it.
absl::StatusOr<PlacedGraph> place(const Plan& plan, const PlacementOptions& options);

}  // namespace trireme::internal
