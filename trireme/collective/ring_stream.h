#pragma once

#include "absl/status/status.h"
#include "trireme/collective/call.h"
#include "trireme/collective/group.h"
#include "trireme/collective/ring_call.h"
#include "trireme/collective/ring_lanes.h"
#include "trireme/collective/ring_layout.h"

namespace trireme::internal {

// Carries out the steps from `first_step` to before `end_step` of the ring (ring_engine.cc) of an
// all-reduce, reduce-scatter or all-gather. Bytes travel on the lanes, and the calls of neighbours
// are compared by parcels before. Blocks until it is complete for this rank.
absl::Status stream_around(Group& group, RingCall& ring, RingLanes& lanes,
                           const CollectiveCall& call, const RingLayout& layout, int first_step,
                           int end_step);

}  // namespace trireme::internal
