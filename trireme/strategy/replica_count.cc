#include "trireme/strategy/replica_count.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/cluster/device_spec.h"
#include "trireme/runtime/cluster_status.h"

namespace trireme::internal {
namespace {

// Time for the other workers once one may have answered.
constexpr Duration kRound = std::chrono::seconds(5);
constexpr Duration kReportEvery = std::chrono::seconds(2);

ClusterSpec workers_of(const ClusterSpec& spec) {
  std::map<int, std::string> addresses;
  for (const TaskId& task : spec.tasks("worker")) addresses[task.index] = spec.address(task);
  return addresses.empty() ? ClusterSpec() : ClusterSpec{{"worker", addresses}};
}

int count_gpus(const TaskDescription& worker) {
  return static_cast<int>(std::ranges::count_if(worker.devices, [](const std::string& device) {
    return DeviceSpec::parse(device).type == DeviceType::kGpu;
  }));
}

// Returns true if the worker may answer later: it has not been started yet, or is slow.
bool may_come(const absl::Status& status) {
  return error_code(status) == ErrorCode::kTaskUnreachable ||
         error_code(status) == ErrorCode::kDeadlineExceeded;
}

}  // namespace

ReplicaCount::ReplicaCount(std::optional<int> given, const ClusterSpec& spec,
                           Credentials credentials, Duration limit)
    : workers_(workers_of(spec)),
      credentials_(std::move(credentials)),
      limit_(limit),
      count_(workers_.empty() && !given ? 1 : given) {}

int ReplicaCount::get() {
  MutexLock lock(mutex_);
  if (!count_) count_ = ask_workers();
  return *count_;
}

int ReplicaCount::ask_workers() const {
  const Time give_up = after(limit_);
  for (;;) {
    const ClusterStatus status = describe_cluster(
        workers_, {.deadline = std::min(give_up, after(kRound)),
                   .wait = true,
                   .on_waiting =
                       [&](const std::vector<TaskId>& missing) {
                         log_info("waiting for ", list_tasks(workers_, missing),
                                  " to tell how many GPUs they have: each worker has a replica "
                                  "for each GPU");
                       },
                   .report_every = kReportEvery,
                   .credentials = credentials_});
    std::map<TaskId, int> gpus;
    std::vector<TaskId> missing;
    for (const auto& [task, answer] : status) {
      if (answer.ok()) {
        gpus[task] = count_gpus(*answer);
      } else if (may_come(answer.status())) {
        missing.push_back(task);
      } else {
        throw to_error(answer.status());
      }
    }
    if (!gpus.empty()) {
      const int count = replicas_for(gpus);
      if (!missing.empty()) {
        log_warning(list_tasks(workers_, missing),
                    " did not tell how many GPUs they have; each "
                    "worker has ",
                    count, count == 1 ? " replica" : " replicas",
                    ", as the others have GPUs. Set .replicas to decide it");
      }
      return count;
    }
    if (Clock::real().now() < give_up) continue;
    throw Error(
        ErrorCode::kDeadlineExceeded,
        absl::StrCat("waited ", format_duration(limit_), " for ", list_tasks(workers_, missing),
                     " to tell how many GPUs, and so how many replicas, each worker has; "
                     "start a worker, or set .replicas of the strategy"));
  }
}

int replicas_for(const std::map<TaskId, int>& gpus) {
  const auto& [first, count] = *gpus.begin();
  for (const auto& [worker, other] : gpus) {
    if (other == count) continue;
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat(first.to_string(), " has ", count, " GPUs, but ", worker.to_string(),
                             " has ", other,
                             "; each worker has a replica for each of its GPUs, and all workers "
                             "must have the same number. Declare equal devices (trireme server "
                             "--devices), or set .replicas of the strategy"));
  }
  return std::max(count, 1);
}

}  // namespace trireme::internal
