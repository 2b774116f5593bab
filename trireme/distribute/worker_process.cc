#include "trireme/distribute/worker_process.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/file_limit.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/cluster/strategy_tasks.h"
#include "trireme/collective/cluster_group.h"
#include "trireme/collective/group_service.h"
#include "trireme/collective/worker_group.h"
#include "trireme/runtime/server_service.h"
#include "trireme/runtime/task_server.h"

namespace trireme::internal {
namespace {

// A worker's server, and what uses it. Destroyed from the last member to the first.
struct WorkerProcess {
  std::unique_ptr<TaskServer> server;
  std::optional<CommunicatorWorkers> workers;
};

// Limit of call_timeout. Parcels wait for no longer.
constexpr auto kLongestCall = std::chrono::hours(24);

// Returns the tasks that train, by rank.
std::vector<TaskId> training_tasks(const ClusterSpec& spec) {
  std::vector<TaskId> tasks = spec.tasks("chief");
  for (const TaskId& worker : spec.tasks("worker")) tasks.push_back(worker);
  return tasks;
}

}  // namespace

std::shared_ptr<WorkerGroup> join_workers(const Cluster& cluster,
                                          const MultiWorkerMirroredStrategyOptions& options) {
  if (options.gradient_dtype && !c10::isFloatingType(*options.gradient_dtype)) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("gradient_dtype is ", c10::toString(*options.gradient_dtype),
                             "; it must be a floating-point type, such as torch::kBFloat16"));
  }
  if (options.call_timeout <= options.call_timeout.zero()) {
    throw Error(ErrorCode::kInvalidArgument,
                "call_timeout must be longer than 0; it is the time for which a worker waits for "
                "others that are busy");
  }
  if (cluster.is_local()) return nullptr;
  check_trains(cluster, "multi_worker_mirrored");
  warn_of_unused_jobs(cluster, "multi_worker_mirrored");
  if (cluster.strategy_name() != "multi_worker_mirrored") {
    log_warning(
        "the program trains with strategy 'multi_worker_mirrored', but that of its cluster "
        "is '",
        cluster.strategy_name(),
        "', so is_chief() is not true in the first worker; pass --strategy "
        "multi_worker_mirrored, or set the strategy of the Cluster");
  }
  const std::vector<TaskId> tasks = training_tasks(cluster.spec);
  if (tasks.size() == 1) return nullptr;
  raise_file_limit();
  auto process = std::make_shared<WorkerProcess>();
  const std::string& certs = options.certs.empty() ? cluster.certs : options.certs;
  const bool insecure = options.insecure || cluster.insecure;
  process->server = value_or_throw(TaskServer::start(
      {.spec = cluster.spec,
       .task = *cluster.task,
       .credentials = value_or_throw(Credentials::of_server(certs, insecure, *cluster.task)),
       .services = {make_server_service, make_collective_service}}));
  const auto group = value_or_throw(
      form_group(process->server->context(), {.name = "multi_worker_mirrored",
                                              .tasks = tasks,
                                              .lease = options.lease,
                                              .deadline = after(options.connect_timeout)}));
  log_info(cluster.task->to_string(), " trains as worker ", group->rank(), " of ", group->size());
  process->workers.emplace(
      std::make_shared<Communicator>(group, options.implementation, options.connect_timeout,
                                     std::min<Duration>(options.call_timeout, kLongestCall)),
      options.gradient_dtype);
  return std::shared_ptr<WorkerGroup>(process, &*process->workers);
}

}  // namespace trireme::internal
