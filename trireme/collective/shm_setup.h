#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/collective/group.h"
#include "trireme/rpc/shared_segment.h"

namespace trireme::internal {

// The segments that a member of a group needs before its first call.
struct ShmSegments {
  std::shared_ptr<SharedSegment> control;             // the same for all members
  std::vector<std::shared_ptr<SharedSegment>> slots;  // by rank; written by its rank first
};

// Creates the segments of this member and opens those of the others. All members call it, with the
// same sizes. It fails on all members, with UNAVAILABLE and the reason, if one of them cannot open
// the segments of another.
absl::StatusOr<ShmSegments> share_segments(Group& group, uint64_t control_bytes,
                                           uint64_t slot_bytes, Time deadline);

}  // namespace trireme::internal
