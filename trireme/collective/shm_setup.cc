#include "trireme/collective/shm_setup.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

absl::Status shm_unavailable(const Group& group, int rank, const std::string& why) {
  return make_status(
      ErrorCode::kUnavailable,
      absl::StrCat("the members of group '", group.name(),
                   "' cannot share memory: ", group.name_of(rank), ": ", why,
                   "; run all of them on one machine as one user, or use another implementation"),
      {.task = group.members()[rank].task.to_string()});
}

// Creates the segments of this member, and returns their handles: that of its slots, and on rank 0
// that of the control segment.
absl::StatusOr<std::string> create_shm_segments(const Group& group, uint64_t control_bytes,
                                                uint64_t slot_bytes, ShmSegments& segments) {
  TRIREME_ASSIGN_OR_RETURN(segments.slots[group.rank()], SharedSegment::create(slot_bytes));
  std::string handles = segments.slots[group.rank()]->handle();
  if (group.rank() == 0) {
    TRIREME_ASSIGN_OR_RETURN(segments.control, SharedSegment::create(control_bytes));
    absl::StrAppend(&handles, "\n", segments.control->handle());
  }
  return handles;
}

// Opens the segments of the other members, except for those that have none and will tell why.
absl::Status open_shm_segments(const Group& group, const std::vector<std::string>& handles,
                               uint64_t control_bytes, uint64_t slot_bytes, ShmSegments& segments) {
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank() || handles[rank].empty()) continue;
    const std::vector<std::string> texts = absl::StrSplit(handles[rank], '\n');
    if (texts.size() != (rank == 0 ? 2 : 1)) {
      return invalid_argument(absl::StrCat(group.name_of(rank), " sent no handles"));
    }
    TRIREME_ASSIGN_OR_RETURN(segments.slots[rank], SharedSegment::open(texts[0]));
    if (rank == 0) {
      TRIREME_ASSIGN_OR_RETURN(segments.control, SharedSegment::open(texts[1]));
    }
    if (segments.slots[rank]->size() < slot_bytes ||
        (rank == 0 && segments.control->size() < control_bytes)) {
      return invalid_argument(absl::StrCat(group.name_of(rank), " shares too little memory"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ShmSegments> share_segments(Group& group, uint64_t control_bytes,
                                           uint64_t slot_bytes, Time deadline) {
  ShmSegments segments;
  segments.slots.resize(group.size());
  // A member that fails takes part in both exchanges, so that all of them come to the same end.
  const absl::StatusOr<std::string> own =
      create_shm_segments(group, control_bytes, slot_bytes, segments);
  TRIREME_ASSIGN_OR_RETURN(const std::vector<std::string> handles,
                           group.exchange("shm/segments", own.value_or(""), deadline));
  const absl::Status opened =
      own.ok() ? open_shm_segments(group, handles, control_bytes, slot_bytes, segments)
               : own.status();
  TRIREME_ASSIGN_OR_RETURN(
      const std::vector<std::string> failures,
      group.exchange("shm/opened", opened.ok() ? "" : describe(opened), deadline));
  for (int rank = 0; rank < group.size(); ++rank) {
    if (!failures[rank].empty()) return shm_unavailable(group, rank, failures[rank]);
    if (segments.slots[rank] == nullptr) return shm_unavailable(group, rank, "it sent no handle");
  }
  return segments;
}

}  // namespace trireme::internal
