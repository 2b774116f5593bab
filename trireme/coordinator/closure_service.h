#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/coordinator/closures.pb.h"
#include "trireme/coordinator/received_closure.h"
#include "trireme/runtime/task_server.h"
#include "trireme/runtime/tensor_lists.h"

namespace trireme {

// Makes the service of a worker that runs closures for coordinators (closures.proto). `context`
// must outlive it.
std::unique_ptr<Service> make_closure_service(TaskContext& context);

namespace internal {

inline constexpr char kConnectCoordinator[] = "/trireme.Closures/Connect";
inline constexpr char kRegisterFunction[] = "/trireme.Closures/Register";
inline constexpr char kCreateResource[] = "/trireme.Closures/Create";
inline constexpr char kRunClosures[] = "/trireme.Closures/Run";
inline constexpr char kCancelClosures[] = "/trireme.Closures/Cancel";
inline constexpr char kDisconnectCoordinator[] = "/trireme.Closures/Disconnect";

// Writes the answer of a closure to `result` and appends its tensors to `message`.
void set_answer(const RunResult& answer, ClosureResponse& result, std::vector<at::Tensor>& message);
// Reads the result of a closure, whose tensors are next in `reader`. Must not be called for a
// response with `drawn`.
ClosureResult result_of(const ClosureResponse& result, TensorReader& reader);

}  // namespace internal
}  // namespace trireme
