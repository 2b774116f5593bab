#pragma once

#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/collective/group.h"
#include "trireme/runtime/task_server.h"

namespace trireme::internal {

// Options of a group of tasks.
struct GroupOptions {
  std::string name;
  std::vector<TaskId> tasks;  // members, by rank; the same list on all of them
  // Time after which a member that does not answer was lost.
  Duration lease = std::chrono::seconds(10);
  Time deadline = after(std::chrono::minutes(10));  // limit for forming the group
  std::stop_token stop = {};                        // ends the wait for other members
};

// Forms a group of the tasks, of which the server with this context is one. All of them must call
// it. Blocks until all have come, and logs which are missing. The server must have the service of
// make_collective_service(). A group of this name that exists fails if one of its members was
// restarted. The group says goodbye to the others when it is destroyed.
absl::StatusOr<std::shared_ptr<Group>> form_group(const TaskContext& context,
                                                  const GroupOptions& options);

}  // namespace trireme::internal
