#include "trireme/rpc/call_group.h"

namespace trireme {

std::optional<absl::Status> CallGroup::on_answer(absl::Status status) {
  MutexLock lock(mutex_);
  status_.Update(std::move(status));  // keeps the first error
  if (--left_ > 0) return std::nullopt;
  return std::move(status_);
}

}  // namespace trireme
