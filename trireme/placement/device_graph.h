#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/graph/plan.h"

// Assigns the operators of a graph to the hardware of one process. Graphs are captured on the CPU
// and say where an operator is to run by a name (Node.device) or by its replica (Node.replica).
// Here the graph gets the operators that move values between devices, and the arguments that name a
// device are replaced.
namespace trireme::internal {

struct DeviceGraphOptions {
  // Device of operators that neither name one nor belong to a replica.
  c10::Device default_device = c10::kCPU;
  // Device of each replica. Operators of other replicas are on the default device.
  std::vector<c10::Device> replica_devices = {};
  // For each variable, the devices that hold its contents, at least one. With several devices the
  // variable is mirrored: an operator reads the copy on its own device, and a change is made on all
  // of them. A variable that operators of a replica write to is the exception: each replica changes
  // a copy of its own, and at the end all copies become the mean, or the value of replica 0 if the
  // variable has integers.
  std::vector<std::vector<c10::Device>> variable_devices;
};

// The result of assign_devices().
struct DeviceGraph {
  std::shared_ptr<const GraphData> graph;
  // For each variable of the new graph, the variable of the old graph that it holds, and its
  // device. The order is that of the old variables, and of their devices.
  struct Copy {
    uint32_t variable;
    c10::Device device;
  };
  std::vector<Copy> variables;
  std::vector<int> node_replicas;  // replica of each node; -1 for none
};

// Returns the graph with every operator on its device. Inputs, received values, outputs and sent
// values are on the CPU. An operator that writes runs where the memory is that it writes to. Fails
// if the graph names a device that is not valid, or writes to memory on two devices with one
// operator.
absl::StatusOr<DeviceGraph> assign_devices(const Plan& plan, const DeviceGraphOptions& options);

// Returns true if the graph can run as it is: everything is on the CPU, and no operator belongs to
// a replica.
bool needs_no_devices(const Plan& plan, const DeviceGraphOptions& options);

}  // namespace trireme::internal
