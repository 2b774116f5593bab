#include "trireme/coordinator/pending_result.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/closure.h"
#include "trireme/coordinator/closure_queue.h"

namespace trireme::internal {

PendingResult::PendingResult(std::shared_ptr<ClosureQueue> queue, std::shared_ptr<Closure> closure)
    : queue_(std::move(queue)), closure_(std::move(closure)) {}

bool PendingResult::ready() const {
  return closure_ != nullptr && (queue_ == nullptr || queue_->is_decided(*closure_));
}

std::vector<at::Tensor> PendingResult::tensors() const {
  if (closure_ == nullptr) {
    throw Error(ErrorCode::kFailedPrecondition,
                "the remote value is empty: no closure was scheduled for it; assign the result of "
                "schedule() to it");
  }
  if (queue_ == nullptr) return {};
  return value_or_throw(queue_->fetch(*closure_));
}

PendingResult PendingResult::ended() {
  auto closure = std::make_shared<Closure>();
  closure->has_value = false;
  return {nullptr, std::move(closure)};
}

bool PendingResult::has_value() const {
  tensors();
  return closure_->has_value;
}

at::Tensor PendingResult::tensor() const {
  std::vector<at::Tensor> all = tensors();
  if (!closure_->has_value) return {};
  if (all.size() == 1) return std::move(all[0]);
  // Captured functions have the same results everywhere, but a worker's binary may be another one.
  throw Error(
      ErrorCode::kFailedPrecondition,
      absl::StrCat("the worker returned ", all.size(), " tensors, but the function of this ",
                   "program returns one; run the workers with the program's own binary"));
}

std::shared_ptr<const void> PendingResult::shape() const {
  return closure_->has_value ? closure_->shape : nullptr;
}

}  // namespace trireme::internal
