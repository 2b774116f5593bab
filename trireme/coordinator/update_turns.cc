#include "trireme/coordinator/update_turns.h"

#include <utility>

namespace trireme::internal {

bool UpdateTurns::enter(Work resume) {
  MutexLock lock(mutex_);
  if (taken_ == at_once_) {
    waiting_.push_back(std::move(resume));
    return false;
  }
  ++taken_;
  return true;
}

void UpdateTurns::leave() {
  Work next;
  {
    MutexLock lock(mutex_);
    if (waiting_.empty()) {
      --taken_;
      return;
    }
    next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  next();
}

}  // namespace trireme::internal
