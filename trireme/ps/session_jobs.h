#pragma once

#include "trireme/runtime/session_job.h"
#include "trireme/runtime/task_server.h"

namespace trireme {

// Joins a job on behalf of a session whose master is this server (JoinSessionJob). The counter of
// generations is held by the first ps task of the cluster, or by the first worker in a cluster
// without ps tasks. Tasks that do not answer are not waited for, except that one. The context must
// outlive the result.
absl::StatusOr<std::shared_ptr<SessionJob>> join_session_job(const TaskContext& context,
                                                             const SessionJobOptions& options,
                                                             Time deadline);

}  // namespace trireme
