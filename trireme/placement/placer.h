#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/cluster/device_spec.h"
#include "trireme/cluster/task_id.h"
#include "trireme/graph/plan.h"

// Decides on which device each operator of a graph runs and each variable is stored. The first rule
// that applies decides:
//
//   - a variable: the device named by the scopes in which it was created; an optimizer's state goes
//     with its variable
//   - an operator that writes to existing memory: the device of that memory; a view of such memory,
//     or of a variable, likewise
//   - a backward operator: the device of the operator that it differentiates, otherwise of its
//     first argument that has a device
//   - an operator in a colocation scope: the device of the value that the scope names
//   - any other operator: the device named by its scopes
//   - parts of a device that scopes leave open: task 0 of the job, the session's master task, the
//     default device of the task
//
// An operator over lists of tensors (`_foreach_mul_`, `_fused_adam_`) is split into one operator
// for each task that has some of the tensors, and for each GPU of the task.
namespace trireme::internal {

struct PlacementOptions {
  TaskId master;                       // the session's master task
  std::map<TaskId, DeviceList> tasks;  // all tasks of the cluster, with their devices
  // True to replace a device that its task does not have by one that it has; false to fail.
  bool soft = true;
};

// The result of placing a graph.
struct PlacedGraph {
  std::shared_ptr<const GraphData> graph;  // every node and variable has a full device and a reason
  std::vector<TaskId> node_tasks;          // task of each node
  std::vector<TaskId> variable_tasks;      // task of each variable
  std::vector<uint32_t> storages;          // storage of each value, as in the plan
  // A sentence for each missing device that was replaced: the device, and the one used instead.
  std::vector<std::string> missing_devices;
};

// Places a graph. The error names the device that does not exist, the scope that named it, and the
// devices that exist.
absl::StatusOr<PlacedGraph> place(const Plan& plan, const PlacementOptions& options);

}  // namespace trireme::internal
