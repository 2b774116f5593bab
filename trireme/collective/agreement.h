#pragma once

#include <string>

#include "absl/status/status.h"
#include "trireme/base/clock.h"
#include "trireme/collective/call.h"
#include "trireme/collective/group.h"

// Lets all members of a group fail if one of them does, for engines whose library does not.
namespace trireme::internal {

// Exchanges the result of a step of an engine's set-up. Returns OK if it is OK for all members,
// otherwise the error of this member, or one that names a member that failed. All members must call
// it with the same key.
absl::Status agree_on_setup(Group& group, const std::string& key, const absl::Status& own,
                            Time deadline);

// Announces a call to all other members, and blocks until all have announced the same call. A
// member that announces another one fails the group. At the deadline the error names the members
// that are missing. This costs one exchange of small messages.
absl::Status agree_on_call(Group& group, const CollectiveCall& call);

// Returns the call and the name of this member, for errors.
std::string describe_own(const Group& group, const CollectiveCall& call);

}  // namespace trireme::internal
