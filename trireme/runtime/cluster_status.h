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
  // True to wait until the deadline for tasks that are not up yet. Otherwise such a task is
  // reported as soon as a connection to it fails, as is always a task that ClusterSpec::serves()
  // does not expect to answer.
  bool wait = false;
  // Called about every `report_every` while tasks that should answer have not, with these tasks.
  std::function<void(const std::vector<TaskId>& missing)> on_waiting = {};
  Duration report_every = std::chrono::seconds(1);
  // Ends the waiting early. Tasks that have not answered by then are reported as CANCELLED.
  std::stop_token stop = {};
  Credentials credentials = Credentials::insecure();
};

// Description of each task of a cluster, or the reason why it cannot be reached.
using ClusterStatus = std::map<TaskId, absl::StatusOr<TaskDescription>>;

// Asks all tasks of a cluster, in parallel, for their descriptions. If another task answers at a
// task's address, the result for the task is an error. Blocks until the last answer, at most until
// shortly after the deadline. A task that ClusterSpec::serves() does not expect to answer has a
// second for it. Throws Error if a port is 0.
ClusterStatus describe_cluster(const ClusterSpec& spec, const ClusterStatusOptions& options = {});

// Formats a list of tasks: "/job:ps/task:0 (a:2222), /job:ps/task:1 (b:2222) and 7 more".
std::string list_tasks(const ClusterSpec& spec, const std::vector<TaskId>& tasks);

}  // namespace trireme
