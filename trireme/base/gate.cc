#include "trireme/base/gate.h"

#include <cassert>

namespace trireme {

Gate::~Gate() {
  assert(inside() == 0 && "a gate was destroyed with work inside");
}

Gate::Pass Gate::enter() {
  MutexLock lock(mutex_);
  if (closed_) return Pass();
  ++inside_;
  return Pass(this);
}

bool Gate::close(Time deadline) {
  MutexLock lock(mutex_);
  closed_ = true;
  while (inside_ > 0) {
    if (!empty_.wait_until(mutex_, deadline) && inside_ > 0) return false;
  }
  return true;
}

int64_t Gate::inside() const {
  MutexLock lock(mutex_);
  return inside_;
}

void Gate::leave() {
  MutexLock lock(mutex_);
  // Notify under the lock: the waiter may destroy the gate as soon as it holds the lock.
  if (--inside_ == 0) empty_.notify_all();
}

}  // namespace trireme
