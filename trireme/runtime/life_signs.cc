#include "trireme/runtime/life_signs.h"

#include "trireme/rpc/async_hello.h"

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Twice in the three seconds that a task has: one call may be lost, and an answer may be late.
RetryPolicy question_retry() {
  return {.attempt_time = milliseconds(1400),
          .first_delay = milliseconds(20),
          .longest_delay = milliseconds(200),
          .unreachable_time = seconds(1)};
}

}  // namespace

void LifeSigns::ask(std::shared_ptr<Channel> channel, uint64_t incarnation, Time limit,
                    OnAnswer done) {
  const Key key{channel.get(), incarnation};
  {
    MutexLock lock(mutex_);
    const auto [found, added] = questions_.try_emplace(key);
    found->second.push_back(std::move(done));
    if (!added) return;
  }
  say_hello(*channel, {.deadline = limit, .incarnation = incarnation, .retry = question_retry()},
            [self = shared_from_this(), channel, key](const absl::StatusOr<Hello>& hello) {
              self->on_answer(key, hello.status());
            });
}

void LifeSigns::on_answer(const Key& key, const absl::Status& status) {
  std::vector<OnAnswer> waiting;
  {
    MutexLock lock(mutex_);
    const auto found = questions_.find(key);
    waiting = std::move(found->second);
    questions_.erase(found);
  }
  for (OnAnswer& done : waiting) done(status);
}

}  // namespace trireme::internal
