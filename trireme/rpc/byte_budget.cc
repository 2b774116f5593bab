#include "trireme/rpc/byte_budget.h"

#include <algorithm>
#include <utility>

namespace trireme {

std::optional<uint64_t> ByteBudget::ask(uint64_t bytes, std::function<void()> on_admitted) {
  {
    MutexLock lock(mutex_);
    // A call does not overtake the queue, even if it would fit: a large call would otherwise never
    // find room.
    if (!waiting_.empty() || !has_room(bytes)) {
      waiting_.push_back({++last_place_, bytes, std::move(on_admitted)});
      waited_.add();
      return last_place_;
    }
    inside_ += bytes;
  }
  on_admitted();
  return std::nullopt;
}

bool ByteBudget::withdraw(uint64_t place) {
  std::vector<std::function<void()>> next;
  std::function<void()> withdrawn;  // destroyed without the lock, as it may hold the last reference
  {
    MutexLock lock(mutex_);
    const auto found = std::lower_bound(
        waiting_.begin(), waiting_.end(), place,
        [](const Waiting& waiting, uint64_t place) { return waiting.place < place; });
    if (found == waiting_.end() || found->place != place) return false;
    withdrawn = std::move(found->on_admitted);
    waiting_.erase(found);
    next = admit_waiting();  // the call may have been the first, and too large for the room left
  }
  for (const auto& on_admitted : next) on_admitted();
  return true;
}

void ByteBudget::leave(uint64_t bytes) {
  std::vector<std::function<void()>> next;
  {
    MutexLock lock(mutex_);
    inside_ -= bytes;
    next = admit_waiting();
  }
  for (const auto& on_admitted : next) on_admitted();
}

std::vector<std::function<void()>> ByteBudget::admit_waiting() {
  std::vector<std::function<void()>> next;
  while (!waiting_.empty() && has_room(waiting_.front().bytes)) {
    inside_ += waiting_.front().bytes;
    next.push_back(std::move(waiting_.front().on_admitted));
    waiting_.pop_front();
  }
  return next;
}

}  // namespace trireme
