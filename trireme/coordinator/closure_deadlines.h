#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/coordinator/closure.h"

namespace trireme::internal {

// The deadlines of closures that are not decided. Not thread-safe: guarded by the queue's lock.
class ClosureDeadlines {
 public:
  // Add and remove a closure. They have no effect on one without a deadline.
  void add(const ClosurePtr& closure) {
    if (closure->deadline) deadlines_.insert({*closure->deadline, closure});
  }
  void remove(const ClosurePtr& closure) {
    if (closure->deadline) deadlines_.erase({*closure->deadline, closure});
  }
  // Removes closures with a sequence below `below`.
  void remove_below(uint64_t below) {
    std::erase_if(deadlines_, [&](const auto& each) { return each.second->sequence < below; });
  }

  // Returns a closure whose deadline has passed; null if there is none.
  ClosurePtr first_late(Time now) {
    if (planned_ && *planned_ <= now) planned_.reset();
    if (deadlines_.empty() || deadlines_.begin()->first > now) return nullptr;
    return deadlines_.begin()->second;
  }
  // Returns the earliest deadline, or nullopt if there is none or an earlier call has returned it.
  std::optional<Time> plan() {
    if (deadlines_.empty()) return std::nullopt;
    const Time first = deadlines_.begin()->first;
    if (planned_ && *planned_ <= first) return std::nullopt;
    return planned_ = first;
  }

 private:
  std::set<std::pair<Time, ClosurePtr>> deadlines_;
  std::optional<Time> planned_;  // Last result of plan(), until its time has come.
};

}  // namespace trireme::internal
