#pragma once

#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"

namespace trireme::internal {

// Refers to an executor that may be destroyed before the objects that submit work to it. The owner
// of the executor calls end() before it destroys it. Thread-safe.
class EndingExecutor {
 public:
  explicit EndingExecutor(Executor& executor) : executor_(&executor) {}

  // Submits the work. After end(), drops it and returns false.
  bool submit(Work work);
  // Stops using the executor.
  void end();

 private:
  Mutex mutex_;
  Executor* executor_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
