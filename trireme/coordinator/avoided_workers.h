#pragma once

#include <algorithm>
#include <set>
#include <vector>

#include "trireme/base/clock.h"

namespace trireme::internal {

// Workers that should not run a closure, each until some time: the closure has failed there because
// the worker could not use a parameter server. Not thread-safe.
class AvoidedWorkers {
 public:
  // Adds a worker, or sets its time anew.
  void add(int worker, Time until) {
    std::erase_if(workers_, [&](const Avoided& avoided) { return avoided.worker == worker; });
    workers_.push_back({worker, until});
  }
  bool contains(int worker, Time now) const {
    return std::ranges::any_of(workers_, [&](const Avoided& avoided) {
      return avoided.worker == worker && now < avoided.until;
    });
  }
  bool empty() const { return workers_.empty(); }

 private:
  struct Avoided {
    int worker;
    Time until;
  };
  std::vector<Avoided> workers_;  // Few: almost every closure avoids no worker.
};

// The workers that are connected to a coordinator. Decides which of them may run a closure. Not
// thread-safe.
class ConnectedWorkers {
 public:
  void add(int worker) { workers_.insert(worker); }
  void remove(int worker) { workers_.erase(worker); }

  // Returns true if the worker is not avoided, or if all connected workers are: a closure that has
  // failed everywhere is tried again rather than left waiting.
  bool may_run(const AvoidedWorkers& avoided, int worker, Time now) const {
    if (avoided.empty() || !avoided.contains(worker, now)) return true;
    return std::ranges::all_of(workers_, [&](int each) { return avoided.contains(each, now); });
  }

 private:
  std::set<int> workers_;
};

}  // namespace trireme::internal
