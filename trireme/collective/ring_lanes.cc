#include "trireme/collective/ring_lanes.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"

// Every rank gives all others the number of the layout and the token of the lane that it expects
// from its left neighbour. Only members of the group get the tokens, and each connects to its right
// neighbour. Then they tell each other whether it has worked, since a ring needs all of its lanes.
namespace trireme::internal {
namespace {

// Number of the order and the sizes of pieces on lanes (ring_engine.cc, ring_stream.cc). Change it
// with them: nothing in the bytes says what they are.
constexpr char kLayout = 1;
// Time for the connections. Where a firewall drops them, the ring uses gRPC after this time.
constexpr Duration kConnectTime = std::chrono::seconds(5);

absl::StatusOr<RingLanes> connect(Group& group, const std::vector<std::string>& tokens,
                                  Time deadline) {
  const int right = (group.rank() + 1) % group.size();
  auto stopped = std::make_unique<StopEvent>(group.stop_token());
  auto to_right = connect_lane(group.members()[right].address, tokens[right].substr(1), deadline);
  auto from_left = group.lanes()->take(tokens[group.rank()].substr(1), deadline);
  if (!to_right.ok()) return to_right.status();
  if (!from_left.ok()) return from_left.status();
  if (stopped->socket().get() < 0) {
    return make_status(ErrorCode::kResourceExhausted, "the process has no file descriptor left");
  }
  return RingLanes{*std::move(to_right), *std::move(from_left), std::move(stopped)};
}

// Returns an error if a rank has another layout.
absl::Status check_layouts(const Group& group, const std::vector<std::string>& tokens) {
  for (int rank = 0; rank < group.size(); ++rank) {
    if (!tokens[rank].empty() && tokens[rank][0] == kLayout) continue;
    return make_status(ErrorCode::kVersionMismatch,
                       absl::StrCat(group.name_of(rank), " runs another release of Trireme"));
  }
  return absl::OkStatus();
}

}  // namespace

StopEvent::StopEvent(std::stop_token stop)
    : event_(make_event()), on_stop_(std::move(stop), [this] { set_event(event_); }) {}

absl::StatusOr<std::optional<RingLanes>> connect_ring_lanes(Group& group, Time deadline) {
  const std::shared_ptr<LaneTable> table = group.lanes();
  if (table == nullptr || group.size() == 1) return std::nullopt;
  const bool is_member = group.rank() >= 0;
  const std::string own = is_member ? table->expect() : "";
  auto tokens = group.exchange("lanes", kLayout + own, deadline);
  absl::Status status = tokens.ok() ? check_layouts(group, *tokens) : tokens.status();
  std::optional<RingLanes> lanes;
  if (status.ok() && is_member) {
    auto connected = connect(group, *tokens, std::min(deadline, after(kConnectTime)));
    status = connected.status();
    if (connected.ok()) lanes = *std::move(connected);
  }
  table->forget(own);
  TRIREME_RETURN_IF_ERROR(tokens.status());
  TRIREME_ASSIGN_OR_RETURN(const std::vector<std::string> errors,
                           group.exchange("lanes made", std::string(status.message()), deadline));
  for (int rank = 0; rank < group.size(); ++rank) {
    if (errors[rank].empty()) continue;
    if (is_member) {
      log_warning("group '", group.name(), "': ", group.name_of(rank),
                  " cannot connect to its neighbours beside gRPC (", errors[rank],
                  "), so large tensors take the slower way through gRPC");
    }
    return std::nullopt;
  }
  return lanes;
}

}  // namespace trireme::internal
