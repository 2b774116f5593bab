#pragma once

#include <trireme/trireme.h>

#include <optional>
#include <sstream>
#include <string>
#include <vector>

// The cluster that an example with sessions runs on: the servers of `--target
// grpc://HOST:PORT[,...]`, or the workers of the cluster that its flags or the environment name, or
// without either two workers and two parameter servers in this process.
class ExampleCluster {
 public:
  // The flag of such an example, for its Usage.
  static trireme::FlagUsage flag() {
    return {"--target", "LIST", "servers to connect to: grpc://HOST:PORT[,...]"};
  }

  explicit ExampleCluster(const trireme::Flags& flags) : me_(trireme::resolve(flags)) {
    std::istringstream list(flags.value("--target"));
    for (std::string target; std::getline(list, target, ',');) targets_.push_back(target);
    if (targets_.empty() && me_.is_local()) {
      me_.spec = servers_.emplace(trireme::InProcessClusterOptions{.workers = 2, .ps = 2}).spec();
    }
    if (!targets_.empty()) return;
    for (const trireme::TaskId& worker : me_.spec.tasks("worker")) {
      targets_.push_back("grpc://" + me_.spec.address(worker));
    }
  }

  // Returns the cluster as this process sees it.
  const trireme::Cluster& me() const { return me_; }
  // Returns true if this process is one of the servers. Sessions use workers in every cluster, also
  // in one where they would train themselves under a strategy.
  bool is_server() const { return me_.is_worker() || me_.is_ps(); }
  // Returns the target for the session of the n-th client. With fewer targets than clients, some
  // clients share one.
  const std::string& target(size_t client = 0) const { return targets_[client % targets_.size()]; }
  // Returns the options of a session without a container.
  trireme::SessionOptions options() const { return {.certs = me_.certs}; }

 private:
  trireme::Cluster me_;
  std::optional<trireme::InProcessCluster> servers_;
  std::vector<std::string> targets_;
};
