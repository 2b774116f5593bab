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
  // Flags for every `trireme server`, for example {"--devices", "cpu:2"}.
  std::vector<std::string> flags = {};
  // Folder of the certificates that the tasks and the test use. They are written into it if it has
  // none. Empty for a cluster without certificates.
  std::string certs = {};
  // Environment variables of single tasks, added to those of the test.
  std::map<TaskId, std::map<std::string, std::string>> environment = {};
  // Network on which each task gets a host of its own; must outlive the cluster. Null to run all
  // tasks on loopback.
  Network* network = nullptr;
  // True if each connection to a task goes through a proxy on the task's host. Needs a network.
  bool proxies = false;
};

// A cluster of real `trireme` processes, one for each task. Their ports are reserved for as long as
// the cluster lives, or each task has a host of its own. Not thread-safe.
class ProcessCluster final : public TestCluster {
 public:
  explicit ProcessCluster(const ProcessClusterOptions& options = {});
  // Thaws and stops all tasks. Fails the test if a task had already ended by itself, ends with a
  // code other than 0, or does not stop in time.
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

  // Returns the task's host in the network.
  std::string host(const TaskId& task) const;
  // Returns the proxy in front of the task. Requires `proxies`.
  TcpProxy& proxy(const TaskId& task) { return *proxies_.at(task); }
  // Returns the pid of the task, or 0 if the test has not started it.
  pid_t pid(const TaskId& task) const;
  // Returns the TF_CONFIG for the process of a task. For "chief" it is that of a client program.
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
  std::map<TaskId, std::unique_ptr<Subprocess>> processes_;  // Tasks that should run.
};

// Returns the path of the `trireme` binary under test: $TRIREME_BINARY if it is set, otherwise the
// one in the directory of the test's own binary, or the one with the stand-in accelerator if the
// test uses that.
std::string trireme_binary();

}  // namespace trireme
