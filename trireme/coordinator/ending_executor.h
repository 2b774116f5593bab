#pragma once

#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"

namespace trireme::internal {

// Refers to an executor that ends before the objects that submit work to it. Thread-safe.
class EndingExecutor {
 public:
  explicit EndingExecutor(Executor& executor) : executor_(&executor) {}

  // Returns false, and drops the work, after end().
  bool submit(Work work);
  void end();

 private:
  Mutex mutex_;
  Executor* executor_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
