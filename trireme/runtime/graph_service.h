#pragma once

#include <memory>

#include "trireme/runtime/task_server.h"

namespace trireme {

// The master and the worker service: every server offers both.
std::unique_ptr<Service> make_graph_service(TaskContext& context);

namespace internal {

inline constexpr char kOpenSession[] = "/trireme.Master/OpenSession";
inline constexpr char kCloseSession[] = "/trireme.Master/CloseSession";
inline constexpr char kRegisterGraph[] = "/trireme.Master/RegisterGraph";
inline constexpr char kInitializeVariables[] = "/trireme.Master/InitializeVariables";
inline constexpr char kRunStep[] = "/trireme.Master/RunStep";
inline constexpr char kCancelStep[] = "/trireme.Master/CancelStep";

}  // namespace internal
}  // namespace trireme
