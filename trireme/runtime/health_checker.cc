#include "trireme/runtime/health_checker.h"

#include "trireme/rpc/async_hello.h"

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Makes two attempts within the three seconds after which callers consider a task lost, because one
// call may be dropped and an answer may be late.
RetryPolicy health_check_retry() {
  return {.attempt_time = milliseconds(1400),
          .first_delay = milliseconds(20),
          .longest_delay = milliseconds(200),
          .unreachable_time = seconds(1)};
}

}  // namespace

void HealthChecker::check(std::shared_ptr<Channel> channel, uint64_t incarnation, Time limit,
                          OnAnswer done) {
  const Key key{channel.get(), incarnation};
  {
    MutexLock lock(mutex_);
    const auto [found, added] = callbacks_by_check_.try_emplace(key);
    found->second.push_back(std::move(done));
    if (!added) return;
  }
  say_hello(*channel,
            {.deadline = limit, .incarnation = incarnation, .retry = health_check_retry()},
            [self = shared_from_this(), channel, key](const absl::StatusOr<Hello>& hello) {
              self->on_answer(key, hello.status());
            });
}

void HealthChecker::on_answer(const Key& key, const absl::Status& status) {
  std::vector<OnAnswer> waiting;
  {
    MutexLock lock(mutex_);
    const auto found = callbacks_by_check_.find(key);
    waiting = std::move(found->second);
    callbacks_by_check_.erase(found);
  }
  for (OnAnswer& done : waiting) done(status);
}

}  // namespace trireme::internal
