#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"

namespace trireme::internal {

// Compares how long workers take for closures of the same functions, and names in the log those
// that are much slower than the others. They stay workers: a slow one still helps. Thread-safe.
class StragglerWatch {
 public:
  // Of one closure: how long it keeps a worker busy, and how long it is away.
  struct Times {
    Duration busy = {};
    Duration away = {};
  };
  // A worker has run closures of a function, which took it so long.
  void note(int worker, uint32_t function, const std::string& name, const Times& each);
  // What they take other workers; zero if none has run such.
  Times elsewhere(int worker, uint32_t function) const;
  // A worker has had closures for so long, which at others would be away for so long.
  void note_waiting(int worker, const std::string& name, Duration waited, Duration elsewhere);
  // It is gone, or another.
  void forget(int worker);

  bool is_slow(int worker) const;

 private:
  struct Worker {
    int slow_times = 0;  // in a row
    int usual_times = 0;
    bool slow = false;
  };

  Times elsewhere_locked(int worker, uint32_t function) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void report(int worker, const std::string& name, Duration here, Duration elsewhere)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::map<uint32_t, std::map<int, Times>> usual_ ABSL_GUARDED_BY(mutex_);  // by function, worker
  std::map<int, Worker> workers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
