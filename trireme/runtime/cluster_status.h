#pragma once

#include <functional>
#include <map>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/cluster/cluster_spec.h"
#include "trireme/rpc/credentials.h"
#include "trireme/runtime/server_service.h"

namespace trireme {

struct ClusterStatusOptions {
  Time deadline = after(std::chrono::seconds(5));
  // Wait until the deadline for tasks that are not up yet, instead of telling so at once.
  bool wait = false;
  // Called while it waits, about every `report_every`, with those who have not answered.
  std::function<void(const std::vector<TaskId>& missing)> on_waiting = {};
  Duration report_every = std::chrono::seconds(1);
  // Ends the waiting early; whoever has not answered by then is CANCELLED.
  std::stop_token stop = {};
  Credentials credentials = Credentials::insecure();
};

using ClusterStatus = std::map<TaskId, absl::StatusOr<TaskDescription>>;

// Asks every task of a cluster at once what it is, or why it cannot be reached. A server that says
// it is another task than the spec has at its address is an error of that task. Blocks until the
// last answer, at the latest until the deadline.
ClusterStatus describe_cluster(const ClusterSpec& spec, const ClusterStatusOptions& options = {});

// "/job:ps/task:0 (a:2222), /job:ps/task:1 (b:2222) and 7 more"
std::string list_tasks(const ClusterSpec& spec, const std::vector<TaskId>& tasks);

}  // namespace trireme
