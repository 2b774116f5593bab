#pragma once

#include <cstdint>

#include "trireme/ps/push_records.h"
#include "trireme/ps/variable_store.h"

namespace trireme::internal {

// Blocks until all updates that are being applied to variables of the store are done. Takes the
// lock of each variable once, so it must not be called on a thread that serves the network.
void wait_for_updates(const VariableStore& store);

// Raises the writer's watermark to `below`. When it returns, no push of the writer below it is
// being applied, and none will be. Blocks like wait_for_updates().
void fence_writer(Writers& writers, const VariableStore& store, uint64_t writer, uint64_t below);

}  // namespace trireme::internal
