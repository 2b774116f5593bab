#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/runtime/life_signs.h"
#include "trireme/runtime/peer_channels.h"
#include "trireme/runtime/task_stub.h"

namespace trireme::internal {

// Gives a master the stubs of the cluster's tasks: that of its own task, and those of the others.
// Thread-safe.
class MasterTasks {
 public:
  MasterTasks(const TaskContext& context, PeerChannels& channels, std::shared_ptr<Worker> worker);

  // Returns a stub for whichever incarnation is there; an error if the cluster has no such task.
  absl::StatusOr<std::shared_ptr<TaskStub>> to(const TaskId& task);
  // Returns a stub for the incarnation that is there now. Asks the task for it, and blocks.
  absl::StatusOr<std::shared_ptr<TaskStub>> connect(const TaskId& task, Time deadline);

 private:
  const TaskContext& context_;
  PeerChannels& channels_;
  const std::shared_ptr<TaskStub> own_;
  const std::shared_ptr<LifeSigns> life_signs_ = std::make_shared<LifeSigns>();
};

}  // namespace trireme::internal
