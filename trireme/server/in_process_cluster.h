#pragma once

#include <memory>
#include <string>

#include "trireme/cluster/resolver.h"
#include "trireme/server/server.h"

namespace trireme {

struct InProcessClusterOptions {
  int workers = 1;
  int ps = 0;
  DeviceList devices = {};  // of each server
};

// A whole cluster in this process: real servers on free loopback ports. For trying things out, for
// tests, and for machines where one process is enough. Thread-safe.
class InProcessCluster {
 public:
  explicit InProcessCluster(const InProcessClusterOptions& options);
  ~InProcessCluster();  // stops every server

  const ClusterSpec& spec() const;
  // For the program that uses the cluster: it has no task of its own.
  SimpleResolver resolver() const;
  // "grpc://127.0.0.1:PORT"
  std::string target(const TaskId& task) const;

  // One task: cancel its calls and stop it at once; start it again, with a new incarnation, if it
  // is stopped. Throws Error for a task that the cluster does not have.
  void stop(const TaskId& task);
  void start(const TaskId& task);
  bool is_running(const TaskId& task) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
