#pragma once

#include <deque>

#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"

namespace trireme::internal {

// Turns of the closures that both read and change variables: each sees what those before it have
// changed. At most `at_once` have a turn at a time, the others wait in the order in which they
// came. Thread-safe.
class UpdateTurns {
 public:
  explicit UpdateTurns(int at_once) : at_once_(at_once) {}

  // Returns true if the caller has a turn now. Otherwise it has one when `resume` is called, by a
  // thread that leaves. Each turn ends with leave().
  bool enter(Work resume);
  void leave();

 private:
  const int at_once_;
  Mutex mutex_;
  int taken_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Work> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
