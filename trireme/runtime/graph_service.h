#pragma once

#include <memory>

#include "trireme/runtime/task_server.h"

namespace trireme {

// Creates the service that answers trireme.Master and trireme.Worker (session.proto). Every server
// offers both.
std::unique_ptr<Service> make_graph_service(TaskContext& context);

namespace internal {

// Methods that clients call.
inline constexpr char kOpenSession[] = "/trireme.Master/OpenSession";
inline constexpr char kCloseSession[] = "/trireme.Master/CloseSession";
inline constexpr char kRegisterGraph[] = "/trireme.Master/RegisterGraph";
inline constexpr char kInitializeVariables[] = "/trireme.Master/InitializeVariables";
inline constexpr char kRunStep[] = "/trireme.Master/RunStep";
inline constexpr char kCancelStep[] = "/trireme.Master/CancelStep";

}  // namespace internal
}  // namespace trireme
