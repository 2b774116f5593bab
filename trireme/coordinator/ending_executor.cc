#include "trireme/coordinator/ending_executor.h"

#include <utility>

namespace trireme::internal {

bool EndingExecutor::submit(Work work) {
  MutexLock lock(mutex_);
  if (executor_ == nullptr) return false;
  executor_->submit(std::move(work));
  return true;
}

void EndingExecutor::end() {
  MutexLock lock(mutex_);
  executor_ = nullptr;
}

}  // namespace trireme::internal
