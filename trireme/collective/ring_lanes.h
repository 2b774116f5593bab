#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/collective/group.h"
#include "trireme/rpc/lane.h"
#include "trireme/rpc/socket.h"

namespace trireme::internal {

// The lanes of one rank of a ring. Used by one thread at a time.
struct RingLanes {
  Lane to_right;
  Lane from_left;
};

// Connects this rank with its neighbours. Returns nullopt if the group uses no lanes, or if some
// rank cannot connect: then no rank uses them. All members of the group must call it, also those
// that are not members of a subgroup (subgroup.h). Blocks until the deadline at most.
absl::StatusOr<std::optional<RingLanes>> connect_ring_lanes(Group& group, Time deadline);

}  // namespace trireme::internal
