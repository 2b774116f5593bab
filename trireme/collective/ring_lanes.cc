#include "trireme/collective/ring_lanes.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"

// Every rank gives all others the token of the lane that it expects from its left neighbour. Only
// members of the group get the tokens, and each connects to its right neighbour. Then they tell
// each other whether it has worked, since a ring needs all of its lanes.
namespace trireme::internal {
namespace {

// Time for the connections. Where a firewall drops them, the ring uses gRPC after this time.
constexpr Duration kConnectTime = std::chrono::seconds(5);

absl::StatusOr<RingLanes> connect(Group& group, const std::vector<std::string>& tokens,
                                  Time deadline) {
  const int right = (group.rank() + 1) % group.size();
  auto to_right = connect_lane(group.members()[right].address, tokens[right], deadline);
  auto from_left = group.lanes()->take(tokens[group.rank()], deadline);
  if (!to_right.ok()) return to_right.status();
  if (!from_left.ok()) return from_left.status();
  return RingLanes{*std::move(to_right), *std::move(from_left)};
}

}  // namespace

absl::StatusOr<std::optional<RingLanes>> connect_ring_lanes(Group& group, Time deadline) {
  const std::shared_ptr<LaneTable> table = group.lanes();
  if (table == nullptr || group.size() == 1) return std::nullopt;
  const bool is_member = group.rank() >= 0;
  const std::string own = is_member ? table->expect() : "";
  auto tokens = group.exchange("lanes", own, deadline);
  if (!tokens.ok()) table->forget(own);
  TRIREME_RETURN_IF_ERROR(tokens.status());
  absl::StatusOr<RingLanes> lanes = make_status(ErrorCode::kNotFound, "not a member of the ring");
  if (is_member) lanes = connect(group, *tokens, std::min(deadline, after(kConnectTime)));
  TRIREME_ASSIGN_OR_RETURN(
      const std::vector<std::string> errors,
      group.exchange("lanes made", lanes.ok() ? "" : std::string(lanes.status().message()),
                     deadline));
  for (int rank = 0; rank < group.size(); ++rank) {
    if (errors[rank].empty()) continue;
    if (is_member) {
      log_warning("group '", group.name(), "': ", group.name_of(rank),
                  " cannot connect to its neighbours beside gRPC (", errors[rank],
                  "), so large tensors take the slower way through gRPC");
    }
    return std::nullopt;
  }
  if (!is_member) return std::nullopt;
  return std::optional<RingLanes>(*std::move(lanes));
}

}  // namespace trireme::internal
