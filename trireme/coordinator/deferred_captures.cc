#include "trireme/coordinator/deferred_captures.h"

#include <utility>

namespace trireme::internal {

void DeferredCaptures::add(ClosurePtr closure, Work capture) {
  deferred_.push_back({std::move(closure), std::move(capture)});
}

bool DeferredCaptures::run(Mutex& mutex) {
  if (deferred_.empty()) return false;
  while (!deferred_.empty()) {
    Deferred next = std::move(deferred_.front());
    deferred_.pop_front();
    mutex.unlock();
    next.capture();
    next = {};  // Destroys the capture outside of the lock.
    mutex.lock();
  }
  return true;
}

std::deque<DeferredCaptures::Deferred> DeferredCaptures::remove_all() {
  return std::exchange(deferred_, {});
}

}  // namespace trireme::internal
