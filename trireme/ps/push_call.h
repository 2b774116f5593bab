#pragma once

#include <memory>
#include <string>

#include "trireme/base/executor.h"
#include "trireme/observe/metrics.h"
#include "trireme/ps/push_records.h"
#include "trireme/ps/stored_variable.h"
#include "trireme/ps/variable_store.h"
#include "trireme/rpc/service.h"

namespace trireme::internal {

// The parts of a server that its pushes share. They must outlive all pushes.
struct PushContext {
  VariableStore& store;
  Writers& writers;
  ThreadPool* pool;
  Counter& already_decided;  // pushes that were rejected with ABORTED
  std::shared_ptr<SnapshotBudget> snapshots;
};

// Serves a call of /trireme.Variables/Push. A push that is rejected changes nothing, unless it is
// rejected because its writer was fenced while it was being applied, or because of a lack of
// memory. Called on a thread of the pool. Does not wait, so it may return before the call is
// answered.
void serve_push(const PushContext& context, ServerCall call);

// Returns true if the push with this body only adds to or assigns whole variables, so that
// its tensors may stay in pieces (Method::scatters). Rows and gradients need contiguous tensors.
bool can_apply_pieces(const std::string& body);

// Returns true if the push with this body changes whole variables only, so that its tensors may be
// in shared memory (Method::shares). Row ids are checked before they are used, and must not change
// in between.
bool changes_whole_variables(const std::string& body);

}  // namespace trireme::internal
