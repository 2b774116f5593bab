#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/runtime/health_checker.h"
#include "trireme/runtime/peer_channels.h"
#include "trireme/runtime/task_stub.h"

namespace trireme::internal {

// Creates the stubs through which a master calls the tasks of the cluster, its own task included.
// Thread-safe. The context and the channels must outlive it.
class MasterTasks {
 public:
  MasterTasks(const TaskContext& context, PeerChannels& channels, std::shared_ptr<Worker> worker);

  // Returns a stub whose calls reach any incarnation of the task; an error if the cluster has no
  // such task. Does not block.
  absl::StatusOr<std::shared_ptr<TaskStub>> to(const TaskId& task);
  // Returns a stub whose calls reach only the incarnation that runs now. Asks the task for its
  // incarnation, and blocks until it answers.
  absl::StatusOr<std::shared_ptr<TaskStub>> connect(const TaskId& task, Time deadline);

 private:
  const TaskContext& context_;
  PeerChannels& channels_;
  const std::shared_ptr<TaskStub> own_;
  const std::shared_ptr<HealthChecker> health_checker_ = std::make_shared<HealthChecker>();
};

}  // namespace trireme::internal
