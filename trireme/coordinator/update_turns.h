#pragma once

#include <deque>

#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"

namespace trireme::internal {

// Admits closures that both read and change variables, at most `at_once` of them at a time, so that
// each sees the changes of the closures before it. The others wait in the order in which they
// arrived. Thread-safe.
class UpdateTurns {
 public:
  explicit UpdateTurns(int at_once) : at_once_(at_once) {}

  // Returns true if the caller has a turn now. Otherwise it gets its turn when a thread in leave()
  // calls `resume`. Each turn must end with leave().
  bool enter(Work resume);
  // Ends a turn, and passes it on to the closure that has waited longest.
  void leave();

 private:
  const int at_once_;
  Mutex mutex_;
  int taken_ ABSL_GUARDED_BY(mutex_) = 0;  // Number of turns that are taken.
  std::deque<Work> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
