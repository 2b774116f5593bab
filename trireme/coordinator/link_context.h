#pragma once

#include <memory>

#include "trireme/coordinator/closure_functions.h"
#include "trireme/coordinator/closure_queue.h"
#include "trireme/coordinator/closures.pb.h"
#include "trireme/coordinator/ps_watch.h"
#include "trireme/coordinator/straggler_watch.h"
#include "trireme/coordinator/worker_resources.h"
#include "trireme/runtime/health_checker.h"

namespace trireme::internal {

// The parts of a coordinator that the connections and dispatchers of all workers share. Immutable;
// the parts are thread-safe.
struct LinkContext {
  ConnectCoordinatorRequest introduction;  // Sent to each worker when it is connected.
  std::shared_ptr<ClosureQueue> queue;
  std::shared_ptr<PsWatch> servers;
  std::shared_ptr<HealthChecker> health_checker;
  std::shared_ptr<WorkerResources> resources;
  std::shared_ptr<StragglerWatch> stragglers;
  std::shared_ptr<FunctionsInUse> functions;
};

}  // namespace trireme::internal
