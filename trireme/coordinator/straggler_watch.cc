#include "trireme/coordinator/straggler_watch.h"

#include <algorithm>
#include <utility>

#include "trireme/base/logging.h"

// A worker is compared with the median of the other workers, function by function, so that one
// other straggler does not hide it. It must be slow by a factor and by a margin, since short times
// vary by large factors, and several times in a row, since a single closure may be delayed and the
// first closures are always slow. The mark is cleared after the same number of times in a row that
// are not slow.
//
// Two signals are used. note() uses the time for which the worker was busy, as it reports it.
// note_waiting() covers a worker that is so slow that it never answers, and compares round trips
// instead.
namespace trireme::internal {
namespace {

using std::chrono::milliseconds;

// A time is slow if it is this many times as long as that of the others, and longer by the margin.
constexpr int kSlowFactor = 4;
constexpr Duration kSlowMargin = milliseconds(50);
// Number of slow times in a row after which a worker is reported.
constexpr int kTimesInARow = 3;
constexpr size_t kMostFunctions = 1024;

int64_t in_milliseconds(Duration time) {
  return std::chrono::duration_cast<milliseconds>(time).count();
}

}  // namespace

void StragglerWatch::note_batch(int worker, const std::vector<ClosurePtr>& closures,
                                const Times& each) {
  const ClosureFunction* noted = nullptr;
  for (const ClosurePtr& closure : closures) {
    const ClosureFunction& function = *closure->function;
    if (std::exchange(noted, &function) == &function) continue;
    note(worker, function.id, function.name, each);
  }
}

void StragglerWatch::note_silence(int worker, const std::vector<ClosurePtr>& closures,
                                  Duration waited) {
  Duration others = {};
  for (const ClosurePtr& closure : closures) {
    const Duration once = median_of_others(worker, closure->function->id).round_trip;
    if (once == Duration()) return;  // No other worker has run this function.
    others += once * closure->repeat;
  }
  if (!closures.empty()) note_waiting(worker, closures[0]->function->name, waited, others);
}

void StragglerWatch::note(int worker, uint32_t function, const std::string& name,
                          const Times& each) {
  MutexLock lock(mutex_);
  const auto [known, first] = usual_[function].try_emplace(worker, each);
  if (!first) {
    Times& usual = known->second;
    usual = {(3 * usual.busy + each.busy) / 4, (3 * usual.round_trip + each.round_trip) / 4};
  }
  if (usual_.size() > kMostFunctions) usual_.erase(usual_.begin());  // The oldest: ids grow.
  const Duration others = median_of_others_locked(worker, function).busy;
  if (others == Duration()) return;
  Worker& state = workers_[worker];
  if (each.busy > kSlowFactor * others && each.busy > others + kSlowMargin) {
    state.usual_times = 0;
    if (++state.slow_times >= kTimesInARow) report(worker, name, each.busy, others);
  } else {
    state.slow_times = 0;
    if (++state.usual_times < kTimesInARow || !state.slow) return;
    state.slow = false;
    log_info("/job:worker/task:", worker, " is as fast as the others again");
  }
}

StragglerWatch::Times StragglerWatch::median_of_others(int worker, uint32_t function) const {
  MutexLock lock(mutex_);
  return median_of_others_locked(worker, function);
}

void StragglerWatch::note_waiting(int worker, const std::string& name, Duration waited,
                                  Duration others) {
  constexpr Duration kGrace = std::chrono::seconds(1);
  if (others == Duration() || waited < kSlowFactor * others + kGrace) return;
  MutexLock lock(mutex_);
  report(worker, name, waited, others);
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

StragglerWatch::Times StragglerWatch::median_of_others_locked(int worker, uint32_t function) const {
  const auto found = usual_.find(function);
  if (found == usual_.end()) return {};
  std::vector<Duration> busy, round_trip;
  for (const auto& [other, usual] : found->second) {
    if (other == worker) continue;
    busy.push_back(usual.busy);
    round_trip.push_back(usual.round_trip);
  }
  if (busy.empty()) return {};
  const auto median = [](std::vector<Duration>& times) {
    const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
  };
  return {median(busy), median(round_trip)};
}

void StragglerWatch::report(int worker, const std::string& name, Duration here, Duration others) {
  Worker& state = workers_[worker];
  if (std::exchange(state.slow, true)) return;
  log_warning("/job:worker/task:", worker, " is slow: closures of function '", name, "' take it ",
              in_milliseconds(here), " ms and other workers ", in_milliseconds(others),
              " ms. It still gets closures; check what else runs on its machine, or remove it from "
              "the cluster");
}

}  // namespace trireme::internal
