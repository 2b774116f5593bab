#pragma once

#include <deque>

#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"
#include "trireme/coordinator/closure.h"

namespace trireme::internal {

// A list of captures that wait for a thread of the user. A worker that draws elements of unknown
// shapes returns the closure, and the closure's function is captured again. A capture runs the
// user's code, which only the user's own threads may do, so they run captures while they wait in
// the queue. Not thread-safe: guarded by the queue's lock.
class DeferredCaptures {
 public:
  struct Deferred {
    ClosurePtr closure;  // A closure in flight.
    Work capture;
  };

  void add(ClosurePtr closure, Work capture);
  // Runs the captures in order, including those that are added meanwhile. Releases `mutex`, which
  // guards this object, while a capture runs. Returns false if there were none.
  bool run(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Removes all captures without running them and returns them. The caller decides their closures
  // and destroys the captures outside of the lock, since they may hold the last reference to
  // objects that use the queue.
  std::deque<Deferred> remove_all();

 private:
  std::deque<Deferred> deferred_;
};

}  // namespace trireme::internal
