#include "trireme/ps/byte_budget.h"

#include <utility>
#include <vector>

namespace trireme {

void ByteBudget::ask(uint64_t bytes, std::function<void()> let_in) {
  {
    MutexLock lock(mutex_);
    // Not past those who wait: a large one would never find room.
    if (!waiting_.empty() || !has_room(bytes)) {
      waiting_.push_back({bytes, std::move(let_in)});
      waited_.add();
      return;
    }
    inside_ += bytes;
  }
  let_in();
}

void ByteBudget::leave(uint64_t bytes) {
  std::vector<std::function<void()>> next;
  {
    MutexLock lock(mutex_);
    inside_ -= bytes;
    while (!waiting_.empty() && has_room(waiting_.front().bytes)) {
      inside_ += waiting_.front().bytes;
      next.push_back(std::move(waiting_.front().let_in));
      waiting_.pop_front();
    }
  }
  for (const auto& let_in : next) let_in();
}

}  // namespace trireme
