#include "trireme/runtime/health_checker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/rpc/async_hello.h"
#include "trireme/rpc/connection_probe.h"
#include "trireme/rpc/retrying_call.h"
#include "trireme/rpc/timer.h"

// A check is a chain of calls, one after the other, for as long as an asker waits:
//
//   attempt() -> on_attempt() -> a short delay -> attempt() ...
//
// It ends for all askers when the task answers, be it with an error such as INCARNATION_CHANGED.
// Until then it ends for each asker at its own limits: at a time, by a timer; or when the task was
// unreachable for long enough, in on_attempt(). An asker that comes while a check is under way
// joins it. The chain removes the check once no asker is left, and only then can check() begin
// another, so there is one chain for each task.
//
// gRPC does not say why a task is unreachable. If an asker wants to know whether its address
// refuses connections, a connection of our own finds out, at most one at a time.
namespace trireme::internal {
namespace {

using std::chrono::milliseconds;

// Allows two calls within the three seconds after which callers consider a task lost, because one
// call may be dropped and an answer may be late.
constexpr auto kAttemptTime = milliseconds(1400);
constexpr auto kRefusalProbeTime = milliseconds(1000);

RetryPolicy health_check_delays() {
  return {.first_delay = milliseconds(20), .longest_delay = milliseconds(200)};
}

}  // namespace

template <typename Matches>
std::vector<HealthChecker::OnAnswer> HealthChecker::Check::remove(Matches matches) {
  std::vector<OnAnswer> removed;
  for (auto each = askers.begin(); each != askers.end();) {
    if (!matches(each->second)) {
      ++each;
      continue;
    }
    removed.push_back(std::move(each->second.done));
    each = askers.erase(each);
  }
  return removed;
}

absl::Status HealthChecker::Check::failure() const {
  if (error.ok()) {
    return make_status(ErrorCode::kDeadlineExceeded,
                       absl::StrCat("no answer from ", channel->task(), " at ", channel->address(),
                                    " to a health check; the task is busy, stopped or cut off"),
                       {channel->task(), ""});
  }
  return make_status(error_code(error),
                     attempts == 1 ? std::string(error.message())
                                   : absl::StrCat(std::string(error.message()), " (after ",
                                                  attempts, " attempts)"),
                     error_origin(error));
}

void HealthChecker::check(const std::shared_ptr<Channel>& channel, uint64_t incarnation,
                          const HealthCheckLimits& limits, OnAnswer done) {
  const Key key{channel.get(), incarnation};
  uint64_t asker;
  bool is_first;
  {
    MutexLock lock(mutex_);
    asker = ++last_asker_;
    const auto [found, added] = checks_.try_emplace(key);
    is_first = added;
    found->second.channel = channel;  // keeps the address in the key from being used again
    found->second.askers.emplace(asker, Asker{limits, std::move(done)});
  }
  run_at(limits.limit, [weak = weak_from_this(), key, asker] {
    if (const auto self = weak.lock()) self->on_limit(key, asker);
  });
  if (is_first) attempt(key);
}

void HealthChecker::attempt(const Key& key) {
  std::shared_ptr<Channel> channel;
  {
    MutexLock lock(mutex_);
    const auto found = checks_.find(key);
    if (found->second.askers.empty()) {
      checks_.erase(found);
      return;
    }
    ++found->second.attempts;
    channel = found->second.channel;
  }
  say_hello(*channel, {.deadline = after(kAttemptTime), .incarnation = key.second},
            [self = shared_from_this(), key](const absl::StatusOr<Hello>& hello) {
              self->on_attempt(key, hello.status());
            });
}

void HealthChecker::on_attempt(const Key& key, const absl::Status& status) {
  std::vector<OnAnswer> ended;
  absl::Status answer = status;
  std::optional<Time> next;
  bool probes = false;
  std::string address;
  {
    MutexLock lock(mutex_);
    const auto found = checks_.find(key);
    Check& check = found->second;
    address = check.channel->address();
    if (status.ok() || !is_retryable(status)) {
      ended = check.remove([](const Asker&) { return true; });
    } else {
      check.error = status;
      answer = check.failure();
      const Time now = Clock::real().now();
      const bool unreachable = error_code(status) == ErrorCode::kTaskUnreachable;
      if (!unreachable) check.unreachable_since.reset();
      if (unreachable && !check.unreachable_since) check.unreachable_since = now;
      ended = check.remove([&](const Asker& asker) {
        const Duration patience = asker.limits.unreachable_time;
        return unreachable && patience > Duration::zero() &&
               now - *check.unreachable_since >= patience;
      });
      probes = unreachable && std::ranges::any_of(check.askers, [](const auto& entry) {
                 return entry.second.limits.fails_if_refused;
               });
      if (probes) probes = !std::exchange(check.probing, true);
    }
    if (check.askers.empty()) {
      checks_.erase(found);
    } else {
      next = after(health_check_delays().delay_before(check.attempts + 1));
    }
  }
  if (probes) probe(key, address);
  if (next) run_at(*next, [self = shared_from_this(), key] { self->attempt(key); });
  for (OnAnswer& done : ended) done(answer);
}

void HealthChecker::probe(const Key& key, const std::string& address) {
  find_refusal(address, after(kRefusalProbeTime),
               [self = shared_from_this(), key](bool refused) { self->on_probed(key, refused); });
}

void HealthChecker::on_probed(const Key& key, bool refused) {
  std::vector<OnAnswer> ended;
  absl::Status failure;
  {
    MutexLock lock(mutex_);
    const auto found = checks_.find(key);
    if (found == checks_.end()) return;
    found->second.probing = false;
    if (!refused) return;
    failure = found->second.failure();
    ended = found->second.remove([](const Asker& asker) { return asker.limits.fails_if_refused; });
  }
  for (OnAnswer& done : ended) done(failure);
}

void HealthChecker::on_limit(const Key& key, uint64_t asker) {
  OnAnswer done;
  absl::Status failure;
  {
    MutexLock lock(mutex_);
    const auto found = checks_.find(key);
    if (found == checks_.end()) return;
    const auto waiting = found->second.askers.find(asker);
    if (waiting == found->second.askers.end()) return;
    done = std::move(waiting->second.done);
    found->second.askers.erase(waiting);
    failure = found->second.failure();
  }
  done(failure);
}

}  // namespace trireme::internal
