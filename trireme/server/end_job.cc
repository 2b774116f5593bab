#include "trireme/server/end_job.h"

#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/runtime/server_service.h"

namespace trireme {

void end_job(const ClusterSpec& spec, const EndJobOptions& options) {
  const Credentials credentials = value_or_throw(Credentials::of_program(options.certs));
  for (const TaskId& task : spec.all_tasks()) {
    if (task.job != "worker" && task.job != "ps") continue;
    Channel channel(
        {.address = spec.address(task), .task = task.to_string(), .credentials = credentials});
    const Time deadline = after(options.timeout);
    absl::Status status = channel.hello(deadline).status();
    if (status.ok()) status = end_job(channel, options.reason, deadline).status();
    if (!status.ok()) log_warning("cannot tell a task that the job has ended: ", describe(status));
  }
}

void end_job(const Cluster& cluster, const EndJobOptions& options) {
  const bool serves_nobody = cluster.is_evaluator() || cluster.is_server();
  if (serves_nobody || cluster.strategy_name() == "multi_worker_mirrored") return;
  EndJobOptions own = options;
  if (own.certs.empty()) own.certs = cluster.certs;
  end_job(cluster.spec, own);
}

}  // namespace trireme
