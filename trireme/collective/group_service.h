#pragma once

#include <memory>

#include "trireme/rpc/service.h"
#include "trireme/runtime/task_server.h"

namespace trireme {

// Creates the service that answers trireme.Collective (collective.proto) for the groups of a
// server. Sets TaskContext::collectives, which form_group() needs, and TaskContext::waits.
std::unique_ptr<Service> make_collective_service(TaskContext& context);

namespace internal {

// Methods of trireme.Collective.
inline constexpr char kGatherMembers[] = "/trireme.Collective/Gather";
inline constexpr char kSendParcel[] = "/trireme.Collective/Send";
inline constexpr char kStreamParcels[] = "/trireme.Collective/Stream";
inline constexpr char kFailGroup[] = "/trireme.Collective/Fail";
inline constexpr char kGroupPosition[] = "/trireme.Collective/Position";

}  // namespace internal
}  // namespace trireme
