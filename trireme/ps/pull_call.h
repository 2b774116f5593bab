#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
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

// Returns the contents of variables as the tensors of a message (packing.h).
absl::StatusOr<std::vector<at::Tensor>> read_whole(
    const std::vector<std::shared_ptr<StoredVariable>>& variables,
    const std::shared_ptr<SnapshotBudget>& snapshots);

}  // namespace trireme::internal
