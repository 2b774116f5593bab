#include "trireme/rpc/byte_budget.h"

#include <algorithm>
#include <utility>

namespace trireme {

std::optional<uint64_t> ByteBudget::ask(uint64_t bytes, std::function<void()> let_in) {
  {
    MutexLock lock(mutex_);
    // Not past those who wait: a large one would never find room.
    if (!waiting_.empty() || !has_room(bytes)) {
      waiting_.push_back({++last_place_, bytes, std::move(let_in)});
      waited_.add();
      return last_place_;
    }
    inside_ += bytes;
  }
  let_in();
  return std::nullopt;
}

bool ByteBudget::withdraw(uint64_t place) {
  std::vector<std::function<void()>> next;
  std::function<void()> withdrawn;  // destroyed outside the lock, with what it holds
  {
    MutexLock lock(mutex_);
    const auto found = std::lower_bound(
        waiting_.begin(), waiting_.end(), place,
        [](const Waiting& waiting, uint64_t place) { return waiting.place < place; });
    if (found == waiting_.end() || found->place != place) return false;
    withdrawn = std::move(found->let_in);
    waiting_.erase(found);
    next = take_those_with_room();  // it may have been the first, too large for the room there was
  }
  for (const auto& let_in : next) let_in();
  return true;
}

void ByteBudget::leave(uint64_t bytes) {
  std::vector<std::function<void()>> next;
  {
    MutexLock lock(mutex_);
    inside_ -= bytes;
    next = take_those_with_room();
  }
  for (const auto& let_in : next) let_in();
}

std::vector<std::function<void()>> ByteBudget::take_those_with_room() {
  std::vector<std::function<void()>> next;
  while (!waiting_.empty() && has_room(waiting_.front().bytes)) {
    inside_ += waiting_.front().bytes;
    next.push_back(std::move(waiting_.front().let_in));
    waiting_.pop_front();
  }
  return next;
}

}  // namespace trireme
