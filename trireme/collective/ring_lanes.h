#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/collective/group.h"
#include "trireme/rpc/lane.h"
#include "trireme/rpc/socket.h"

namespace trireme::internal {

// Lets poll() wait until a token stops, too.
class StopEvent {
 public:
  explicit StopEvent(std::stop_token stop);
  // Returns a descriptor that is readable once the token has stopped; none if the system has none.
  const Socket& socket() const { return event_; }

 private:
  const Socket event_;
  const std::stop_callback<std::function<void()>> on_stop_;
};

// The lanes of one rank of a ring. Used by one thread at a time.
struct RingLanes {
  Lane to_right;
  Lane from_left;
  std::unique_ptr<StopEvent> stopped;  // readable once the group has failed
};

// Connects this rank with its neighbours. Returns nullopt if the group uses no lanes, or if some
// rank cannot connect: then no rank uses them. All members of the group must call it, also those
// that are not members of a subgroup (subgroup.h). Blocks until the deadline at most.
absl::StatusOr<std::optional<RingLanes>> connect_ring_lanes(Group& group, Time deadline);

}  // namespace trireme::internal
