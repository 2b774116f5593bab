#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "trireme/coordinator/ending_executor.h"
#include "trireme/coordinator/update_turns.h"
#include "trireme/ps/ps_client.h"

namespace trireme::internal {

// The objects that all closures of one coordinator share while they run on a worker. The members
// are thread-safe.
struct ClosureEnvironment {
  const uint64_t coordinator;  // Writer of the closures' pushes.
  const std::string task;      // Name of this worker, for errors.
  const std::unique_ptr<PsClient> servers;
  const std::shared_ptr<EndingExecutor> executor;
  UpdateTurns turns;
};

}  // namespace trireme::internal
