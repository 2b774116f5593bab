#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/rpc/channel.h"

namespace trireme::internal {

// Checks that tasks still answer. However many steps wait for a busy task, at most one health check
// of it is in flight: later callers share its answer. Thread-safe. Must be held by a shared_ptr; a
// check in flight keeps it alive.
class HealthChecker : public std::enable_shared_from_this<HealthChecker> {
 public:
  using OnAnswer = absl::AnyInvocable<void(const absl::Status&)>;

  // Calls `done` once: with OK if this incarnation of the task answers before `limit`, otherwise
  // with the error. If a check is already in flight, the limit of that one applies.
  void check(std::shared_ptr<Channel> channel, uint64_t incarnation, Time limit, OnAnswer done);

 private:
  using Key = std::pair<const Channel*, uint64_t>;  // channel and incarnation
  void on_answer(const Key& key, const absl::Status& status);

  Mutex mutex_;
  // Callbacks that wait for each check in flight.
  std::map<Key, std::vector<OnAnswer>> callbacks_by_check_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
