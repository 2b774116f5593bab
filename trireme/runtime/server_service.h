#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "trireme/rpc/channel.h"
#include "trireme/runtime/task_server.h"

namespace trireme {

// Creates the service that answers trireme.Server (server.proto): it describes the server, and is
// told when a job has ended.
std::unique_ptr<Service> make_server_service(TaskContext& context);

// Description of a server, from itself.
struct TaskDescription {
  std::string task;
  std::string address;
  uint64_t incarnation = 0;
  Duration uptime = {};
  std::string release;
  int64_t pid = 0;
  std::string host;
  std::vector<std::string> devices;
  std::map<std::string, uint64_t> counters;
  std::vector<std::string> waits;  // operations that wait for other tasks, a line for each
};

// Asks the server at the other end of a channel for its description. Calls back once.
void describe_task(Channel& channel, const CallOptions& options,
                   absl::AnyInvocable<void(absl::StatusOr<TaskDescription>)> done);

inline void describe_task(Channel& channel, Time deadline,
                          absl::AnyInvocable<void(absl::StatusOr<TaskDescription>)> done) {
  describe_task(channel, CallOptions{.deadline = deadline}, std::move(done));
}

// Asks for the description and blocks until it arrives.
absl::StatusOr<TaskDescription> describe_task(Channel& channel, const CallOptions& options);

// Tells the server that the job has ended. Returns true if the server exits. Blocks.
absl::StatusOr<bool> end_job(Channel& channel, const std::string& reason, Time deadline);

}  // namespace trireme
