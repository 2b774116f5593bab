#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/cluster/device_spec.h"
#include "trireme/graph/plan.h"
#include "trireme/runtime/peer_channels.h"
#include "trireme/runtime/task_server.h"

namespace trireme::internal {

// Finds the devices of the cluster's tasks, which the placer needs. Asks each task once, when a
// graph first names it. Thread-safe. The context and the channels must outlive it.
class TaskDevices {
 public:
  TaskDevices(const TaskContext& context, PeerChannels& channels);

  struct Answer {
    std::map<TaskId, DeviceList> devices;  // devices by task; incomplete if some are not up
    std::string waits_for;                 // tasks that are not up, and why; empty if all are
  };
  // Returns the devices that are needed to place the graph. Blocks until the tasks that the graph
  // names have answered, or for about a second if some are not up.
  absl::StatusOr<Answer> find(const proto::GraphDef& def, Time deadline);

 private:
  absl::StatusOr<DeviceList> ask(const TaskId& task, Time deadline);

  const TaskContext& context_;
  PeerChannels& channels_;
  Mutex mutex_;
  std::map<TaskId, DeviceList> known_ ABSL_GUARDED_BY(mutex_);  // devices of tasks that answered
};

}  // namespace trireme::internal
