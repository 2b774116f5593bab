#include "trireme/collective/group.h"

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme::internal {

std::string Group::name_of(int rank) const {
  return absl::StrCat("rank ", rank, " (", members()[rank].task.to_string(), ")");
}

void Group::suspect(int rank, ErrorCode code, const std::string& why) {
  fail(member_lost(name(), rank, members()[rank], code, why));
}

absl::Status member_lost(const std::string& group, int rank, const GroupMember& member,
                         ErrorCode code, const std::string& why) {
  return make_status(code,
                     absl::StrCat("rank ", rank, " (", member.task.to_string(), ") of group '",
                                  group, "' was lost: ", why),
                     {member.task.to_string(), ""});
}

}  // namespace trireme::internal
