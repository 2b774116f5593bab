#pragma once

#include <ATen/core/Tensor.h>
#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/coordinator/closure.h"
#include "trireme/coordinator/closures.pb.h"
#include "trireme/runtime/task_server.h"

namespace trireme {

// What workers offer coordinators (closures.proto).
std::unique_ptr<Service> make_closure_service(TaskContext& context);

namespace internal {

inline constexpr char kConnectCoordinator[] = "/trireme.Closures/Connect";
inline constexpr char kRegisterProgram[] = "/trireme.Closures/Register";
inline constexpr char kRunClosures[] = "/trireme.Closures/Run";
inline constexpr char kCancelClosures[] = "/trireme.Closures/Cancel";
inline constexpr char kDisconnectCoordinator[] = "/trireme.Closures/Disconnect";

// Several lists of tensors in one message, some of them undefined: how a list is added, and told
// with how many tensors; and how they are taken out again, one list after the other.
using Places = google::protobuf::RepeatedField<uint32_t>;
uint32_t append_defined(const std::vector<at::Tensor>& list, std::vector<at::Tensor>& message,
                        Places& undefined);

class TensorReader {
 public:
  explicit TensorReader(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {}
  // With the undefined ones `count` tensors.
  absl::StatusOr<std::vector<at::Tensor>> next(uint32_t count, const Places& undefined);

 private:
  const std::vector<at::Tensor>& tensors_;
  size_t next_ = 0;
};

void set_outcome(const ClosureOutcome& outcome, ClosureResult& result,
                 std::vector<at::Tensor>& message);
ClosureOutcome outcome_of(const ClosureResult& result, TensorReader& reader);

}  // namespace internal
}  // namespace trireme
