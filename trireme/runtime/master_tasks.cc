#include "trireme/runtime/master_tasks.h"

#include <utility>

#include "trireme/base/status.h"
#include "trireme/runtime/local_task.h"
#include "trireme/runtime/remote_task.h"
#include "trireme/runtime/server_service.h"

namespace trireme::internal {

MasterTasks::MasterTasks(const TaskContext& context, PeerChannels& channels,
                         std::shared_ptr<Worker> worker)
    : context_(context),
      channels_(channels),
      own_(std::make_shared<LocalTask>(std::move(worker), context.incarnation)) {}

absl::StatusOr<std::shared_ptr<TaskStub>> MasterTasks::to(const TaskId& task) {
  if (task == context_.task) return own_;
  TRIREME_ASSIGN_OR_RETURN(auto channel, channels_.to(task));
  return std::make_shared<RemoteTask>(std::move(channel), 0, health_checker_);
}

absl::StatusOr<std::shared_ptr<TaskStub>> MasterTasks::connect(const TaskId& task, Time deadline) {
  if (task == context_.task) return own_;
  TRIREME_ASSIGN_OR_RETURN(auto channel, channels_.to(task));
  const absl::StatusOr<TaskDescription> answer =
      describe_task(*channel, {.deadline = deadline, .retry = step_retry()});
  if (!answer.ok()) return with_origin(answer.status(), {task.to_string(), ""});
  return std::make_shared<RemoteTask>(std::move(channel), answer->incarnation, health_checker_);
}

}  // namespace trireme::internal
