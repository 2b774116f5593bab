#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "trireme/coordinator/ending_executor.h"
#include "trireme/coordinator/kept_draws.h"
#include "trireme/coordinator/update_turns.h"
#include "trireme/ps/ps_client.h"

namespace trireme::internal {

// Everything that all closures of one coordinator use while they run on a worker. Its members are
// thread-safe.
struct ClosureEnvironment {
  const uint64_t coordinator;
  const std::string task;  // name of this worker, for errors
  const std::unique_ptr<PsClient> servers;
  const std::shared_ptr<EndingExecutor> executor;
  UpdateTurns turns;
  KeptDraws kept = {};
};

}  // namespace trireme::internal
