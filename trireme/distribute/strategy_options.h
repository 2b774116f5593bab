#pragma once

#include <c10/core/ScalarType.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "trireme/collective/implementation.h"

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

// Options of a MultiWorkerMirroredStrategy.
struct MultiWorkerMirroredStrategyOptions {
  // Devices of the replicas of each worker, as for MirroredStrategy. All workers must have the same
  // number of replicas.
  std::vector<std::string> devices = {};
  // The way in which workers exchange gradients.
  CommunicationImplementation implementation = CommunicationImplementation::kAuto;
  // Time after which a worker that does not answer was lost.
  std::chrono::milliseconds lease = std::chrono::seconds(10);
  // Time limit for all workers to be up when the strategy is made.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(10);
  // Time limit for all workers to make a call in which they exchange values, such as the gradients
  // of a step. A worker that is lost is noticed after `lease`, so this limits the time for which
  // workers that are up wait for one that is busy, for example with a file or with its data. At
  // most a day.
  std::chrono::milliseconds call_timeout = std::chrono::minutes(10);
  // Dtype of floating-point gradients on their way to other workers, such as torch::kBFloat16;
  // nullopt for their own.
  std::optional<c10::ScalarType> gradient_dtype = {};
  // Folder with this worker's certificates; empty for that of the Cluster. Connections without
  // certificates stay on this machine.
  std::string certs = {};
  // True to listen on addresses that other machines can reach, without certificates. Anyone who can
  // reach the port then controls the worker.
  bool insecure = false;
};

}  // namespace trireme
