#include "trireme/collective/find_hosts.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/rpc/shared_segment.h"

// Every rank creates a small segment and tries to open the segments of the others. The ranks then
// exchange which segments they could open, so that all see the same table and divide the ranks
// alike. Equal boot ids only suggest that two ranks share a machine, since containers have the id
// of their machine.

namespace trireme::internal {
namespace {

constexpr char kCanOpen = '+';
constexpr char kCannotOpen = '-';

// Returns a character for each rank: kCanOpen if this member can open its segment.
std::string open_probes(const Group& group, const std::vector<std::string>& handles) {
  std::string opened(group.size(), kCannotOpen);
  int refused = 0;
  std::string first_refusal;
  for (int rank = 0; rank < group.size(); ++rank) {
    const bool may_share = group.members()[rank].boot_id == group.members()[group.rank()].boot_id &&
                           !handles[rank].empty();
    if (rank == group.rank() || !may_share) continue;
    const absl::Status status = SharedSegment::open(handles[rank]).status();
    if (status.ok()) {
      opened[rank] = kCanOpen;
    } else if (++refused == 1) {
      first_refusal = absl::StrCat(group.name_of(rank), ": ", describe(status));
    }
  }
  if (refused > 0) {
    log_info("group '", group.name(), "': ", refused, " ranks with the boot id of ",
             group.name_of(group.rank()), " share no memory with it; the first is ", first_refusal);
  }
  return opened;
}

}  // namespace

absl::StatusOr<std::vector<std::vector<int>>> find_hosts(Group& group, Time deadline) {
  const auto probe = SharedSegment::create(1);
  if (!probe.ok()) {
    log_warning("group '", group.name(), "': no memory is shared: ", describe(probe.status()));
  }
  TRIREME_ASSIGN_OR_RETURN(
      const std::vector<std::string> handles,
      group.exchange("hosts/probe", probe.ok() ? (*probe)->handle() : "", deadline));
  TRIREME_ASSIGN_OR_RETURN(const std::vector<std::string> opened,
                           group.exchange("hosts/opened", open_probes(group, handles), deadline));
  for (int rank = 0; rank < group.size(); ++rank) {
    if (opened[rank].size() == opened.size()) continue;
    return make_status(ErrorCode::kInternal,
                       absl::StrCat(group.name_of(rank), " tells of ", opened[rank].size(),
                                    " ranks that share memory, but group '", group.name(), "' has ",
                                    opened.size()));
  }
  std::vector<std::vector<int>> hosts;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto host = std::ranges::find_if(hosts, [&](const std::vector<int>& others) {
      return std::ranges::all_of(others, [&](int other) {
        return opened[rank][other] == kCanOpen && opened[other][rank] == kCanOpen;
      });
    });
    if (host == hosts.end()) {
      hosts.push_back({rank});
    } else {
      host->push_back(rank);
    }
  }
  return hosts;
}

}  // namespace trireme::internal
