#pragma once

#include <memory>

#include "trireme/cluster/resolver.h"
#include "trireme/distribute/strategy_options.h"
#include "trireme/function/worker_values.h"

namespace trireme::internal {

// Makes this process one of the workers of the cluster that train together: serves its task, and
// waits for the others. The chief, if there is one, and the workers are numbered in this order. The
// server stops when the last reference to the group is gone. Returns null if this process trains
// alone, without a cluster or as its only worker. Throws Error.
std::shared_ptr<WorkerGroup> join_workers(const Cluster& cluster,
                                          const MultiWorkerMirroredStrategyOptions& options);

}  // namespace trireme::internal
