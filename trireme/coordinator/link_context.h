#pragma once

#include <memory>

#include "trireme/coordinator/closure_functions.h"
#include "trireme/coordinator/closure_queue.h"
#include "trireme/coordinator/closures.pb.h"
#include "trireme/coordinator/ps_watch.h"
#include "trireme/coordinator/straggler_watch.h"
#include "trireme/coordinator/worker_resource.h"
#include "trireme/runtime/life_signs.h"

namespace trireme::internal {

// Parts of a coordinator that its connections and dispatchers for all workers share. Immutable.
struct LinkContext {
  ConnectCoordinatorRequest introduction;
  std::shared_ptr<ClosureQueue> queue;
  std::shared_ptr<PsWatch> servers;
  std::shared_ptr<LifeSigns> life_signs;
  std::shared_ptr<WorkerResources> resources;
  std::shared_ptr<StragglerWatch> stragglers;
  std::shared_ptr<FunctionsInUse> functions;
};

}  // namespace trireme::internal
