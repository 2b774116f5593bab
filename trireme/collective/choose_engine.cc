#include "trireme/collective/choose_engine.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/collective/find_hosts.h"
#include "trireme/collective/gloo_engine.h"
#include "trireme/collective/hierarchy_engine.h"
#include "trireme/collective/nccl_engine.h"
#include "trireme/collective/ring_engine.h"
#include "trireme/collective/shm_engine.h"

namespace trireme::internal {
namespace {

std::string implementation_name(CommunicationImplementation implementation) {
  switch (implementation) {
    case CommunicationImplementation::kAuto:
      return "AUTO";
    case CommunicationImplementation::kRing:
      return "RING";
    case CommunicationImplementation::kShm:
      return "SHM";
    case CommunicationImplementation::kGloo:
      return "GLOO";
    case CommunicationImplementation::kNccl:
      return "NCCL";
  }
  return "unknown";
}

// Compares the options of all ranks. Ranks that set up different implementations would wait for
// each other until the deadline, and the error would not say why.
absl::Status agree_on_implementation(Group& group, CommunicationImplementation implementation,
                                     Time deadline) {
  TRIREME_ASSIGN_OR_RETURN(
      const std::vector<std::string> names,
      group.exchange("implementation", implementation_name(implementation), deadline));
  for (int rank = 1; rank < group.size(); ++rank) {
    if (names[rank] == names[0]) continue;
    return make_status(ErrorCode::kFailedPrecondition,
                       absl::StrCat("the ranks of group '", group.name(),
                                    "' use different implementations: ", group.name_of(0), " uses ",
                                    names[0], ", but ", group.name_of(rank), " uses ", names[rank],
                                    "; set the same implementation on all of them"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CollectiveEngine>> make_engine(
    Group& group, CommunicationImplementation implementation, Time deadline) {
  switch (implementation) {
    case CommunicationImplementation::kShm:
      return make_shm_engine(group, deadline);
    case CommunicationImplementation::kGloo:
      return make_gloo_engine(group, deadline);
    case CommunicationImplementation::kNccl:
      return make_nccl_engine(group, deadline);
    case CommunicationImplementation::kAuto:
    case CommunicationImplementation::kRing:
      break;
  }
  return make_ring_engine(group, deadline);
}

// Makes an engine that uses shared memory as far as the ranks have it in common.
absl::StatusOr<std::unique_ptr<CollectiveEngine>> make_sharing_engine(
    Group& group, const std::vector<std::vector<int>>& hosts, Time deadline) {
  return hosts.size() == 1 ? make_shm_engine(group, deadline)
                           : make_hierarchy_engine(group, hosts, deadline);
}

absl::StatusOr<ChosenEngine> choose_for_hosts(Group& group, Time deadline) {
  TRIREME_ASSIGN_OR_RETURN(const auto hosts, find_hosts(group, deadline));
  const int count = static_cast<int>(hosts.size());
  std::string reason = "no two tasks share memory";
  if (count == 1 || count < group.size()) {
    auto engine = make_sharing_engine(group, hosts, deadline);
    if (engine.ok() && count == 1) {
      log_info("group '", group.name(), "': collectives of ", group.size(),
               " ranks use shared memory, since all tasks are on this machine");
      return ChosenEngine{CommunicationImplementation::kShm, *std::move(engine)};
    }
    if (engine.ok()) {
      log_info("group '", group.name(), "': collectives use a hierarchy: ", count, " hosts, ",
               group.size(), " ranks; shared memory on each host, the ring between them");
      return ChosenEngine{CommunicationImplementation::kAuto, *std::move(engine)};
    }
    // The tasks may have too little memory. Then making the engine fails, for all members.
    if (!group.failure().ok()) return group.failure();
    reason = absl::StrCat("shared memory cannot be used: ", engine.status().message());
  }
  TRIREME_ASSIGN_OR_RETURN(auto ring, make_ring_engine(group, deadline));
  log_info("group '", group.name(), "': collectives of ", group.size(),
           " ranks use the ring, since ", reason);
  return ChosenEngine{CommunicationImplementation::kRing, std::move(ring)};
}

}  // namespace

absl::StatusOr<ChosenEngine> choose_engine(Group& group, CommunicationImplementation implementation,
                                           Time deadline) {
  TRIREME_RETURN_IF_ERROR(agree_on_implementation(group, implementation, deadline));
  if (implementation == CommunicationImplementation::kAuto)
    return choose_for_hosts(group, deadline);
  TRIREME_ASSIGN_OR_RETURN(auto engine, make_engine(group, implementation, deadline));
  return ChosenEngine{implementation, std::move(engine)};
}

}  // namespace trireme::internal
