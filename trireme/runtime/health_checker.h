#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/rpc/channel.h"

namespace trireme::internal {

// The patience of one asker of a health check.
struct HealthCheckLimits {
  Time limit;  // Time by which the task must have answered.
  // Time for which the task may be unreachable, if that ends sooner; 0 for until the limit. A task
  // that is reached but does not answer is not unreachable.
  Duration unreachable_time = std::chrono::seconds(1);
  // True if the check fails as soon as the task's address refuses connections.
  bool fails_if_refused = false;
};

// Checks that tasks still answer. However many steps wait for a busy task, at most one call checks
// its health at a time: all askers share its answer. Each asker has its own limits. Thread-safe.
// Must be held by a shared_ptr; a check under way keeps it alive.
class HealthChecker : public std::enable_shared_from_this<HealthChecker> {
 public:
  using OnAnswer = absl::AnyInvocable<void(const absl::Status&)>;

  // Calls `done` once: with OK if this incarnation of the task answers within the limits, otherwise
  // with the error.
  void check(const std::shared_ptr<Channel>& channel, uint64_t incarnation,
             const HealthCheckLimits& limits, OnAnswer done);

 private:
  using Key = std::pair<const Channel*, uint64_t>;  // channel and incarnation
  struct Asker {
    HealthCheckLimits limits;
    OnAnswer done;
  };
  struct Check {
    std::shared_ptr<Channel> channel;
    std::map<uint64_t, Asker> askers;  // askers that have no answer yet, by number
    int attempts = 0;                  // number of calls so far
    absl::Status error;                // error of the last call; OK before
    // Time of the first in a row of calls that found the task unreachable.
    std::optional<Time> unreachable_since;
    bool probing = false;  // true while it is found out whether the address refuses connections

    // Removes the askers that match and returns their callbacks.
    template <typename Matches>
    std::vector<OnAnswer> remove(Matches matches);
    // Returns the error of the last call, for an asker whose limits are reached.
    absl::Status failure() const;
  };

  // Makes one call, unless no asker is left.
  void attempt(const Key& key);
  void on_attempt(const Key& key, const absl::Status& status);
  // Finds out whether the task's address refuses connections.
  void probe(const Key& key, const std::string& address);
  void on_probed(const Key& key, bool refused);
  // Ends the check for one asker, unless it has its answer.
  void on_limit(const Key& key, uint64_t asker);

  Mutex mutex_;
  uint64_t last_asker_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Key, Check> checks_ ABSL_GUARDED_BY(mutex_);  // checks under way
};

}  // namespace trireme::internal
