#pragma once

#include <string>
#include <vector>

namespace trireme {

// Options of a MirroredStrategy.
struct MirroredStrategyOptions {
  // Devices of the replicas, such as {"/gpu:0", "/gpu:1"}. Empty for all GPUs of the machine, or
  // one CPU if it has none. CPUs are logical devices: {"/cpu:0", "/cpu:1"} runs two replicas at the
  // same time on the threads of one machine, each with its share of them.
  std::vector<std::string> devices = {};
};

// Options of a CentralStorageStrategy.
struct CentralStorageStrategyOptions {
  // Devices of the replicas. Empty for all GPUs of the machine, or one CPU if it has none.
  std::vector<std::string> compute_devices = {};
  // Device of the variables. Empty for the CPU, or for the GPU if there is just one.
  std::string parameter_device = {};
};

}  // namespace trireme
