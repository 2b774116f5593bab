#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "trireme/base/mutex.h"
#include "trireme/observe/metrics.h"
#include "trireme/rpc/service.h"

namespace trireme {

// How many bytes of calls a server works on at once. Who comes when there is no room waits in line;
// one that is larger than all of it is let in alone. Thread-safe.
class ByteBudget final : public Intake {
 public:
  // Counts those that had to wait.
  ByteBudget(uint64_t limit, Counter& waited) : limit_(limit), waited_(waited) {}

  void ask(uint64_t bytes, std::function<void()> let_in) override;
  void leave(uint64_t bytes) override;

 private:
  struct Waiting {
    uint64_t bytes;
    std::function<void()> let_in;
  };

  bool has_room(uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return inside_ == 0 || (bytes <= limit_ && inside_ <= limit_ - bytes);
  }

  const uint64_t limit_;
  Counter& waited_;
  Mutex mutex_;
  uint64_t inside_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme
