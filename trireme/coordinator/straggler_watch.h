#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/coordinator/closure.h"

namespace trireme::internal {

// Compares how long workers take for closures of the same function, and logs the ones that are much
// slower than the others. A slow worker still gets closures, since it still helps. Thread-safe.
class StragglerWatch {
 public:
  // Times of one closure.
  struct Times {
    Duration busy = {};        // Time for which it keeps a worker busy.
    Duration round_trip = {};  // Time from sending it to its answer.
  };
  // Notes that a worker has run these closures, each of which took `each`.
  void note_batch(int worker, const std::vector<ClosurePtr>& closures, const Times& each);
  // Notes that a worker has not answered for `waited`, and has these closures. Compares this with
  // the time that other workers would take for all of them.
  void note_silence(int worker, const std::vector<ClosurePtr>& closures, Duration waited);

  // Notes that a worker has run closures of a function, each of which took `each`.
  void note(int worker, uint32_t function, const std::string& name, const Times& each);
  // Returns the median of the times that other workers take for a closure of the function, or zero
  // if no other worker has run one.
  Times median_of_others(int worker, uint32_t function) const;
  // Notes that a worker has not answered for `waited`. Other workers need `others` for the same
  // closures.
  void note_waiting(int worker, const std::string& name, Duration waited, Duration others);
  // Forgets the times of a worker that was lost, removed or replaced.
  void forget(int worker);

  bool is_slow(int worker) const;

 private:
  struct Worker {
    int slow_times = 0;   // Number of slow times in a row.
    int usual_times = 0;  // Number of times in a row that were not slow.
    bool slow = false;    // True once it has been reported as slow.
  };

  Times median_of_others_locked(int worker, uint32_t function) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Logs that the worker is slow, unless it is known to be.
  void report(int worker, const std::string& name, Duration here, Duration others)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  // Moving averages of the times, by function and worker.
  std::map<uint32_t, std::map<int, Times>> usual_ ABSL_GUARDED_BY(mutex_);
  std::map<int, Worker> workers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
