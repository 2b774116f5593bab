#pragma once

#include <map>
#include <optional>

#include "trireme/server/in_process_cluster.h"
#include "trireme/testing/test_cluster.h"

namespace trireme {

// A cluster of servers in the test's own process. It starts fast, and sanitizers and debuggers see
// all of it.
class InProcessTestCluster final : public TestCluster {
 public:
  // `devices` are those of each task; those of the machine if not set.
  explicit InProcessTestCluster(const TestClusterOptions& options = {},
                                std::optional<DeviceList> devices = {});

  const ClusterSpec& spec() const override { return cluster_.spec(); }
  void start(const TaskId& task) override { cluster_.start(task); }
  void kill(const TaskId& task) override { cluster_.stop(task); }
  void stop(const TaskId& task) override { cluster_.stop(task); }
  bool is_running(const TaskId& task) override { return cluster_.is_running(task); }
  bool can_freeze() const override { return false; }
  void freeze(const TaskId& task) override;
  void thaw(const TaskId& task) override;
  // Returns nothing: the servers log to the test's own standard error.
  std::vector<std::string> logs(const TaskId&) override { return {}; }

 private:
  InProcessCluster cluster_;
};

}  // namespace trireme
