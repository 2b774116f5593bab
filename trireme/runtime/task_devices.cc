#include "trireme/runtime/task_devices.h"

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/rpc/connect.h"
#include "trireme/runtime/server_service.h"

namespace trireme::internal {
namespace {

// Longest time to wait for tasks that are not up. Then the client is told, and asks again.
constexpr auto kWaitForTasks = std::chrono::seconds(1);
// Time reserved before the deadline, so that the answer still reaches the client.
constexpr auto kTimeToAnswer = std::chrono::milliseconds(200);

}  // namespace

TaskDevices::TaskDevices(const TaskContext& context, PeerChannels& channels)
    : context_(context), channels_(channels), known_{{context.task, context.devices}} {}

absl::StatusOr<TaskDevices::Answer> TaskDevices::find(const proto::GraphDef& def, Time deadline) {
  std::set<std::string> named;
  for (const proto::Node& node : def.nodes()) named.insert(node.device());
  for (const proto::Variable& variable : def.variables()) named.insert(variable.device());
  Answer answer;
  std::set<TaskId> asked;
  {
    MutexLock lock(mutex_);
    // Tasks that the graph does not name are not asked, and get the default devices. The placer
    // needs them only to list the cluster's tasks in errors.
    for (const TaskId& task : context_.spec.without_evaluator().all_tasks()) {
      answer.devices[task] = {};
    }
    for (const auto& [task, devices] : known_) answer.devices[task] = devices;
    for (const std::string& device : named) {
      TRIREME_ASSIGN_OR_RETURN(const DeviceSpec spec,
                               try_call([&] { return DeviceSpec::parse(device); }));
      const TaskId task = task_of(spec, context_.task);
      if (answer.devices.contains(task) && !known_.contains(task)) asked.insert(task);
    }
  }
  std::vector<std::shared_ptr<Channel>> held;
  std::vector<Channel*> channels;
  for (const TaskId& task : asked) {
    TRIREME_ASSIGN_OR_RETURN(held.emplace_back(), channels_.to(task));
    channels.push_back(held.back().get());
  }
  TRIREME_ASSIGN_OR_RETURN(
      answer.waits_for,
      find_missing(channels, std::min(deadline - kTimeToAnswer, after(kWaitForTasks))));
  if (!answer.waits_for.empty()) return answer;
  for (const TaskId& task : asked) {
    TRIREME_ASSIGN_OR_RETURN(const DeviceList devices, ask(task, deadline));
    answer.devices[task] = devices;
    MutexLock lock(mutex_);
    known_[task] = devices;
  }
  return answer;
}

absl::StatusOr<DeviceList> TaskDevices::ask(const TaskId& task, Time deadline) {
  TRIREME_ASSIGN_OR_RETURN(const auto channel, channels_.to(task));
  const absl::StatusOr<TaskDescription> answer = describe_task(
      *channel, {.deadline = deadline, .wait_for_ready = true, .retry = step_retry()});
  if (!answer.ok()) return with_origin(answer.status(), {task.to_string(), ""});
  DeviceList devices;
  devices.cpus = devices.gpus = 0;
  for (const std::string& name : answer->devices) {
    const auto spec = try_call([&] { return DeviceSpec::parse(name); });
    if (!spec.ok()) return spec.status();
    ++(spec->type == DeviceType::kGpu ? devices.gpus : devices.cpus);
  }
  return devices;
}

}  // namespace trireme::internal
