#pragma once

#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"
#include "trireme/rpc/channel.h"
#include "trireme/runtime/task_server.h"

namespace trireme {

// Keeps a server's channels to the other tasks of its cluster, which it opens on first use.
// Thread-safe. The context must outlive it.
class PeerChannels {
 public:
  explicit PeerChannels(const TaskContext& context) : context_(context) {}

  // Returns the channel to a task; an error if the cluster has no such task.
  absl::StatusOr<std::shared_ptr<Channel>> to(const TaskId& task);

 private:
  const TaskContext& context_;
  Mutex mutex_;
  std::map<TaskId, std::shared_ptr<Channel>> channels_ ABSL_GUARDED_BY(mutex_);
};

// Returns how calls within a step are retried: soon, because other tasks wait for them, and not for
// long if the task cannot be reached.
RetryPolicy step_retry();

}  // namespace trireme
