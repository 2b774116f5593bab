#pragma once

#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"
#include "trireme/rpc/channel.h"
#include "trireme/runtime/task_server.h"

namespace trireme {

// A server's channels to the other tasks of its cluster, made when first needed. Thread-safe.
class PeerChannels {
 public:
  explicit PeerChannels(const TaskContext& context) : context_(context) {}

  // An error if the cluster has no such task.
  absl::StatusOr<std::shared_ptr<Channel>> to(const TaskId& task);

 private:
  const TaskContext& context_;
  Mutex mutex_;
  std::map<TaskId, std::shared_ptr<Channel>> channels_ ABSL_GUARDED_BY(mutex_);
};

// How calls within a step are repeated: soon, since others wait for them, and not for long when
// nobody is there.
RetryPolicy step_retry();

}  // namespace trireme
