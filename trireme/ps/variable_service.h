#pragma once

#include <memory>

#include "trireme/ps/variable_store.h"
#include "trireme/rpc/service.h"
#include "trireme/runtime/task_server.h"

namespace trireme {

// Methods of the service; ps/variables.proto says what they carry.
inline constexpr char kCreateVariables[] = "/trireme.Variables/Create";
inline constexpr char kLookupVariables[] = "/trireme.Variables/Lookup";
inline constexpr char kPullVariables[] = "/trireme.Variables/Pull";
inline constexpr char kPushVariables[] = "/trireme.Variables/Push";
inline constexpr char kWriteVariables[] = "/trireme.Variables/Write";
inline constexpr char kDeleteVariables[] = "/trireme.Variables/Delete";
inline constexpr char kDropContainer[] = "/trireme.Variables/DropContainer";
inline constexpr char kSetOptimizer[] = "/trireme.Variables/SetOptimizer";
inline constexpr char kBeginWriter[] = "/trireme.Variables/BeginWriter";
inline constexpr char kEndWriter[] = "/trireme.Variables/EndWriter";
inline constexpr char kListVariables[] = "/trireme.Variables/List";

// The service of a server's variables. Sets context.variables. By default variables may take four
// fifths of the machine's memory.
std::unique_ptr<Service> make_variable_service(TaskContext& context);
std::unique_ptr<Service> make_variable_service(TaskContext& context, VariableStoreOptions options);

}  // namespace trireme
