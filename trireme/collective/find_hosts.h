#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "trireme/collective/group.h"

namespace trireme::internal {

// Divides the ranks of a group into hosts. The ranks of one host can open each other's shared
// memory; they have tried it. The hosts are in the order of their lowest ranks, and the ranks of
// each are in ascending order. All members must call it, and all get the same result.
absl::StatusOr<std::vector<std::vector<int>>> find_hosts(Group& group, Time deadline);

}  // namespace trireme::internal
