#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/coordinator/avoided_workers.h"
#include "trireme/coordinator/closure.h"
#include "trireme/coordinator/closure_taker.h"

namespace trireme::internal {

// The takers of a queue that found no closure and wait to be notified, and the workers that are
// connected. Not thread-safe: guarded by the queue's lock.
class WaitingTakers {
 public:
  using Takers = std::deque<std::shared_ptr<ClosureTaker>>;

  bool empty() const { return takers_.empty(); }
  void add(const std::shared_ptr<ClosureTaker>& taker) { takers_.push_back(taker); }
  // Removes all takers and returns them.
  Takers remove_all() { return std::exchange(takers_, {}); }

  void add_worker(int worker) { workers_.add(worker); }
  void remove_worker(int worker) { workers_.remove(worker); }
  // Returns true if the worker may run the closure now.
  bool may_run(const Closure& closure, int worker, Time now) const {
    return workers_.may_run(closure.avoided, worker, now);
  }

  // Removes a taker that can take one of the queued closures, and returns it; null if there is
  // none. A busy worker may take closures too, so that it has the next batch at hand, but only if
  // no idle worker can. A taker for which nothing is queued must not be chosen: it would take
  // nothing, wait again, and be chosen again.
  std::shared_ptr<ClosureTaker> remove_next(const std::deque<ClosurePtr>& queued, Time now) {
    auto chosen = takers_.end();
    for (auto each = takers_.begin(); each != takers_.end(); ++each) {
      const bool is_better = chosen == takers_.end() || (*each)->is_idle();
      if (!is_better || !can_take(**each, queued, now)) continue;
      chosen = each;
      if ((*each)->is_idle()) break;
    }
    if (chosen == takers_.end()) return nullptr;
    std::shared_ptr<ClosureTaker> taker = std::move(*chosen);
    takers_.erase(chosen);
    return taker;
  }

 private:
  bool can_take(const ClosureTaker& taker, const std::deque<ClosurePtr>& queued, Time now) const {
    return std::ranges::any_of(
        queued, [&](const ClosurePtr& closure) { return may_run(*closure, taker.worker(), now); });
  }

  Takers takers_;
  ConnectedWorkers workers_;
};

}  // namespace trireme::internal
