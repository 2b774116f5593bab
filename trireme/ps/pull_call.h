#pragma once

#include <memory>

#include "trireme/base/executor.h"
#include "trireme/ps/stored_variable.h"
#include "trireme/ps/variable_store.h"
#include "trireme/rpc/byte_budget.h"
#include "trireme/rpc/service.h"

namespace trireme::internal {

// The parts of a server that its pulls share. They must outlive all pulls.
struct PullContext {
  VariableStore& store;
  ThreadPool* pool;
  std::shared_ptr<ByteBudget> budget;  // for copies that are being sent
  std::shared_ptr<SnapshotBudget> snapshots;
};

// Serves a call of /trireme.Variables/Pull. Called on a thread of the pool. Does not wait, so it
// may return before the call is answered.
void serve_pull(const PullContext& context, ServerCall call);

}  // namespace trireme::internal
