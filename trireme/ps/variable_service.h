#pragma once

#include <memory>

#include "trireme/ps/variable_store.h"
#include "trireme/rpc/service.h"
#include "trireme/runtime/task_server.h"

namespace trireme {

// Makes the service by which clients use the variables of a server, with a store of its own. Sets
// context.variables to that store, and context.join_job. Without options, variables may take four
// fifths of the machine's memory. It serves trireme.Jobs too (job_service.h), since jobs own
// variables, and trireme.Saves (save_service.h). How a call is served:
//
// - Calls that may take long, or may wait for the lock of a variable, run on a pool of threads of
//   the service. Quick ones run on the thread that received them.
// - A pull or push is checked as a whole before anything is read or changed: handles, shapes, row
//   ids, kinds. All sizes come from the wire and are compared with what the message really carries.
// - Then the work is divided among the threads of the pool in ranges of about 1 MiB
//   (for_each_parallel). The last thread to finish sends the answer; none waits for the others.
// - A large whole variable is pulled as a snapshot that all pulls share (StoredVariable::snapshot).
//   Small variables and rows are copied into the block of the response (packing.h).
// - Large updates that are added or assigned whole are applied from the pieces in which gRPC
//   received them (Method::scatters), which saves a copy.
// - Two budgets bound the memory. The transport reads only the first frame of a push until the
//   budget for pushes has room for all of it. A large pull waits for the budget for pulls before it
//   copies anything; its share is returned when the last byte of the response was sent, because the
//   tensors of the response own it.
std::unique_ptr<Service> make_variable_service(TaskContext& context);
std::unique_ptr<Service> make_variable_service(TaskContext& context, VariableStoreOptions options);

}  // namespace trireme
