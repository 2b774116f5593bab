#pragma once

#include <memory>
#include <optional>
#include <string>

#include "trireme/cluster/resolver.h"
#include "trireme/server/server.h"

namespace trireme {

// Options of an InProcessCluster.
struct InProcessClusterOptions {
  int workers = 1;  // number of workers, if `spec` is empty
  int ps = 0;       // number of parameter servers, if `spec` is empty
  // Tasks to serve, all of them, at the addresses of the spec. Port 0 stands for any free port.
  ClusterSpec spec = {};
  // Devices of each server; by default the CPU and all accelerators of the machine.
  std::optional<DeviceList> devices = {};
};

// Runs a whole cluster in this process: real servers on loopback ports, free ones by default. Meant
// for experiments, for tests, and for machines where one process is enough. Thread-safe.
//
//   tr::InProcessCluster cluster({.workers = 3, .ps = 2});
//   tr::ParameterServerStrategy strategy(cluster.resolver());
//
//   tr::InProcessCluster given({.spec = {{"worker", {"localhost:0", "localhost:2222"}}}});
class InProcessCluster {
 public:
  // Starts all servers. Throws Error if there is no task to start.
  explicit InProcessCluster(const InProcessClusterOptions& options);
  // Stops all servers, without waiting for calls in flight to complete.
  ~InProcessCluster();

  // Returns the tasks and their addresses, with the ports that were picked.
  const ClusterSpec& spec() const;
  // Returns a resolver for the program that uses the cluster. That program is not a task of it.
  SimpleResolver resolver() const;
  // Returns the address of a task as tr::Session takes it: "grpc://127.0.0.1:PORT".
  std::string target(const TaskId& task) const;

  // Stops the server of a task and cancels its calls, as if it had failed. Throws Error if the
  // cluster has no such task, as do start() and is_running().
  void stop(const TaskId& task);
  // Starts the server of a task again, with a new incarnation, if it is stopped.
  void start(const TaskId& task);
  // Returns true if the server of a task runs.
  bool is_running(const TaskId& task) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
