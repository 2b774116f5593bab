#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/cluster/device_spec.h"
#include "trireme/graph/plan.h"

// Soft placement within one process: of a function that runs in the program, and of a closure on
// the worker that has taken it. Sessions have the placer (placer.h) for this.
namespace trireme::internal {

// A graph that names only devices which exist.
struct ExistingDevices {
  std::shared_ptr<const GraphData> graph;
  // A sentence for each missing device that was replaced: the device, and the one used instead.
  std::vector<std::string> missing;
};

// Replaces each device that operators name and the process does not have by the nearest one that it
// has. Returns the graph itself if there is none. `inventory` tells people which devices there are:
// "/job:worker/task:0 has cpu:0". Fails if a name is not valid.
absl::StatusOr<ExistingDevices> use_existing_devices(std::shared_ptr<const GraphData> graph,
                                                     const DeviceList& devices,
                                                     const std::string& inventory);

// Does the same with the devices of this machine, of which a program uses all: its accelerators,
// and any number of CPUs.
absl::StatusOr<ExistingDevices> use_devices_of_program(std::shared_ptr<const GraphData> graph);

}  // namespace trireme::internal
