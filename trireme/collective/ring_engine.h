#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/collective/engine.h"
#include "trireme/collective/group.h"

namespace trireme::internal {

// Returns the engine that sends parcels between the members of a group: over the ports of the
// cluster, and with its certificates. Without certificates, large tensors take lanes (rpc/lane.h)
// between neighbours. The group must outlive the engine. All members must call it. Blocks until the
// deadline at most.
absl::StatusOr<std::unique_ptr<CollectiveEngine>> make_ring_engine(Group& group, Time deadline);

}  // namespace trireme::internal
