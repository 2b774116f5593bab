#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"
#include "trireme/rpc/timer.h"

namespace trireme::internal {

// Lets the batches of a coordinator take their turns in the order in which they were sent, so that
// a program with one worker trains to the same weights in every run. The network and the threads of
// the worker may deliver two batches in any order. Each batch has a number, and names the one that
// was sent before it unless that was answered. Thread-safe.
class BatchOrder : public std::enable_shared_from_this<BatchOrder> {
 public:
  // Time that a batch waits for the one before it. That one does not arrive if its call has failed.
  static constexpr Duration kLongestWait = std::chrono::seconds(1);

  // Returns true if batch `after` has entered, or is 0: then the caller enters its batch now.
  // Otherwise calls `enter` when that has happened, on the thread that calls note_entered(), or
  // when the wait becomes too long.
  bool may_enter(uint64_t batch, uint64_t after, Work enter) {
    {
      MutexLock lock(mutex_);
      if (after <= entered_) return true;
      waiting_.emplace(after, Waiting{batch, std::move(enter)});
    }
    run_at(trireme::after(kLongestWait), [weak = weak_from_this(), after, batch] {
      if (const auto self = weak.lock()) self->release(after, batch);
    });
    return false;
  }

  // Notes that the closures of a batch have taken their places in the queue for turns.
  void note_entered(uint64_t batch) {
    std::vector<Work> next;
    {
      MutexLock lock(mutex_);
      entered_ = std::max(entered_, batch);
      const auto [first, last] = waiting_.equal_range(batch);
      for (auto each = first; each != last; ++each) next.push_back(std::move(each->second.enter));
      waiting_.erase(first, last);
    }
    for (Work& enter : next) enter();
  }

 private:
  struct Waiting {
    uint64_t batch = 0;
    Work enter;
  };

  // Lets a batch enter that has waited long enough.
  void release(uint64_t after, uint64_t batch) {
    Work enter;
    {
      MutexLock lock(mutex_);
      const auto [first, last] = waiting_.equal_range(after);
      const auto found =
          std::find_if(first, last, [&](const auto& each) { return each.second.batch == batch; });
      if (found == last) return;
      enter = std::move(found->second.enter);
      waiting_.erase(found);
    }
    enter();
  }

  Mutex mutex_;
  uint64_t entered_ ABSL_GUARDED_BY(mutex_) = 0;  // Highest number of a batch that has entered.
  // Batches, by the one that they wait for.
  std::multimap<uint64_t, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
