#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/base/subprocess.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/testing/network.h"
#include "trireme/testing/tcp_proxy.h"
#include "trireme/testing/test_cluster.h"

namespace trireme {

struct ProcessClusterOptions : TestClusterOptions {
  // Flags for every `trireme server`, as {"--devices", "cpu:2"}.
  std::vector<std::string> flags = {};
  // A folder whose certificates the tasks and the test use; they are written into it if it has
  // none. Empty: no certificates.
  std::string certs = {};
  // Variables of single tasks, on top of those of the test.
  std::map<TaskId, std::map<std::string, std::string>> environment = {};
  // Each task on a new host of this network, which outlives the cluster. None: all on loopback.
  Network* network = nullptr;
  // With a network: whoever comes to a task passes a proxy on the task's host.
  bool proxies = false;
};

// The real `trireme` binary, one process for each task, on ports that are held for the cluster's
// life, or on hosts of their own.
class ProcessCluster final : public TestCluster {
 public:
  explicit ProcessCluster(const ProcessClusterOptions& options = {});
  // Stops all, thawed. It is a failure of the test if a task ended by itself, with another code
  // than 0, or only by kill -9.
  ~ProcessCluster() override;

  const ClusterSpec& spec() const override { return spec_; }
  void start(const TaskId& task) override;
  void kill(const TaskId& task) override;
  void stop(const TaskId& task) override;
  bool is_running(const TaskId& task) override;
  bool can_freeze() const override { return true; }
  Credentials credentials() const override { return credentials_; }
  void freeze(const TaskId& task) override;
  void thaw(const TaskId& task) override;
  std::vector<std::string> logs(const TaskId& task) override;

  // Where it is in the network.
  std::string host(const TaskId& task) const;
  // That before the task, if there are proxies.
  TcpProxy& proxy(const TaskId& task) { return *proxies_.at(task); }
  // 0 if it does not run.
  pid_t pid(const TaskId& task) const;
  // TF_CONFIG as the process of a task has it; for "chief" as a program that uses the cluster.
  std::string tf_config(const TaskId& task) const;

 private:
  std::vector<std::string> reserve(int count);
  Subprocess& running(const TaskId& task) const;

  Network* const network_;
  std::vector<std::string> flags_;
  std::map<TaskId, std::map<std::string, std::string>> environment_;
  Credentials credentials_ = Credentials::insecure();
  std::vector<PortReservation> ports_;
  ClusterSpec spec_;
  std::map<TaskId, std::unique_ptr<TcpProxy>> proxies_;
  Mutex mutex_;
  std::map<TaskId, std::vector<std::string>> logs_ ABSL_GUARDED_BY(mutex_);
  std::map<TaskId, std::unique_ptr<Subprocess>> processes_;  // whom the test wants to run
};

// The binary under test: TRIREME_BINARY of the environment, else the one beside the test's own.
std::string trireme_binary();

}  // namespace trireme
