#include "trireme/coordinator/straggler_watch.h"

#include <algorithm>
#include <vector>

#include "trireme/base/logging.h"

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;

// Slow is who takes so many times as long as others, and by so much longer: what takes no time
// varies by much.
constexpr int kSlower = 4;
constexpr Duration kSlowerBy = milliseconds(50);
// So often in a row: a closure may have had bad luck, and the first ones are always slow.
constexpr int kTimes = 3;
constexpr size_t kMostFunctions = 1024;

int64_t in_milliseconds(Duration time) {
  return std::chrono::duration_cast<milliseconds>(time).count();
}

}  // namespace

void StragglerWatch::note(int worker, uint32_t function, const std::string& name,
                          const Times& each) {
  MutexLock lock(mutex_);
  const auto [known, first] = usual_[function].try_emplace(worker, each);
  if (!first) {
    Times& usual = known->second;
    usual = {(3 * usual.busy + each.busy) / 4, (3 * usual.away + each.away) / 4};
  }
  if (usual_.size() > kMostFunctions) usual_.erase(usual_.begin());  // the oldest
  const Duration others = elsewhere_locked(worker, function).busy;
  if (others == Duration()) return;
  Worker& state = workers_[worker];
  if (each.busy > kSlower * others && each.busy > others + kSlowerBy) {
    state.usual_times = 0;
    if (++state.slow_times >= kTimes) report(worker, name, each.busy, others);
  } else {
    state.slow_times = 0;
    if (++state.usual_times < kTimes || !state.slow) return;
    state.slow = false;
    log_info("/job:worker/task:", worker, " is as fast as the others again");
  }
}

StragglerWatch::Times StragglerWatch::elsewhere(int worker, uint32_t function) const {
  MutexLock lock(mutex_);
  return elsewhere_locked(worker, function);
}

void StragglerWatch::note_waiting(int worker, const std::string& name, Duration waited,
                                  Duration elsewhere) {
  constexpr Duration kPatience = std::chrono::seconds(1);
  if (elsewhere == Duration() || waited < kSlower * elsewhere + kPatience) return;
  MutexLock lock(mutex_);
  report(worker, name, waited, elsewhere);
}

void StragglerWatch::forget(int worker) {
  MutexLock lock(mutex_);
  workers_.erase(worker);
  for (auto& [function, usual] : usual_) usual.erase(worker);
}

bool StragglerWatch::is_slow(int worker) const {
  MutexLock lock(mutex_);
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.slow;
}

// The medians, so that one other straggler does not hide this one.
StragglerWatch::Times StragglerWatch::elsewhere_locked(int worker, uint32_t function) const {
  const auto found = usual_.find(function);
  if (found == usual_.end()) return {};
  std::vector<Duration> busy, away;
  for (const auto& [other, usual] : found->second) {
    if (other == worker) continue;
    busy.push_back(usual.busy);
    away.push_back(usual.away);
  }
  if (busy.empty()) return {};
  const auto median = [](std::vector<Duration>& times) {
    const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
  };
  return {median(busy), median(away)};
}

void StragglerWatch::report(int worker, const std::string& name, Duration here,
                            Duration elsewhere) {
  Worker& state = workers_[worker];
  if (std::exchange(state.slow, true)) return;
  log_warning("/job:worker/task:", worker, " is slow: closures of function '", name, "' take it ",
              in_milliseconds(here), " ms and others ", in_milliseconds(elsewhere),
              " ms. It still gets closures; look at what else its machine does, or take it out of "
              "the cluster");
}

}  // namespace trireme::internal
