#include "trireme/collective/agreement.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/status.h"

namespace trireme::internal {

absl::Status agree_on_setup(Group& group, const std::string& key, const absl::Status& own,
                            Time deadline) {
  TRIREME_ASSIGN_OR_RETURN(const auto errors,
                           group.exchange(key, std::string(own.message()), deadline));
  TRIREME_RETURN_IF_ERROR(own);
  for (int rank = 0; rank < group.size(); ++rank) {
    if (!errors[rank].empty()) {
      return make_status(ErrorCode::kFailedPrecondition,
                         absl::StrCat(group.name_of(rank), " failed: ", errors[rank]));
    }
  }
  return absl::OkStatus();
}

absl::Status agree_on_call(Group& group, const CollectiveCall& call) {
  const Parcel announcement = {.from = group.rank(),
                               .sequence = call.sequence,
                               .call_fingerprint = fingerprint(call),
                               .call_description = describe_call(call)};
  std::vector<int> missing;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank()) continue;
    missing.push_back(rank);
    // The group detects members that are lost.
    group.send(rank, announcement, [](const absl::Status&) {});
  }
  while (!missing.empty()) {
    const auto parcel = group.receive(call.sequence, call.deadline);
    if (!parcel.ok()) {
      TRIREME_RETURN_IF_ERROR(group.failure());
      const auto add_name = [&](std::string* text, int rank) { *text += group.name_of(rank); };
      return make_status(
          ErrorCode::kDeadlineExceeded,
          absl::StrCat(describe_own(group, call), " did not complete in time: it waited for ",
                       absl::StrJoin(missing, ", ", add_name)));
    }
    if (parcel->call_fingerprint != announcement.call_fingerprint) {
      const absl::Status mismatch =
          mismatch_error(call.sequence, group.name_of(group.rank()), announcement.call_description,
                         group.name_of(parcel->from), parcel->call_description);
      group.fail(mismatch);
      return mismatch;
    }
    std::erase(missing, parcel->from);
  }
  return absl::OkStatus();
}

std::string describe_own(const Group& group, const CollectiveCall& call) {
  return absl::StrCat(describe_call(call), " of ", group.name_of(group.rank()));
}

}  // namespace trireme::internal
