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

int64_t in_milliseconds(Duration time) {
  return std::chrono::duration_cast<milliseconds>(time).count();
}

}  // namespace

void StragglerWatch::note(int worker, uint32_t program, const std::string& function,
                          Duration each) {
  MutexLock lock(mutex_);
  const auto [known, first] = usual_[program].try_emplace(worker, each);
  if (!first) known->second = (3 * known->second + each) / 4;
  const Duration others = elsewhere_locked(worker, program);
  if (others == Duration()) return;
  Worker& state = workers_[worker];
  if (each > kSlower * others && each > others + kSlowerBy) {
    state.usual_times = 0;
    if (++state.slow_times >= kTimes) name(worker, function, each, others);
  } else {
    state.slow_times = 0;
    if (++state.usual_times < kTimes || !state.slow) return;
    state.slow = false;
    log_info("/job:worker/task:", worker, " is as fast as the others again");
  }
}

Duration StragglerWatch::elsewhere(int worker, uint32_t program) const {
  MutexLock lock(mutex_);
  return elsewhere_locked(worker, program);
}

void StragglerWatch::note_waiting(int worker, const std::string& function, Duration waited,
                                  Duration elsewhere) {
  constexpr Duration kPatience = std::chrono::seconds(1);
  if (elsewhere == Duration() || waited < kSlower * elsewhere + kPatience) return;
  MutexLock lock(mutex_);
  name(worker, function, waited, elsewhere);
}

void StragglerWatch::forget(int worker) {
  MutexLock lock(mutex_);
  workers_.erase(worker);
  for (auto& [program, usual] : usual_) usual.erase(worker);
}

bool StragglerWatch::is_slow(int worker) const {
  MutexLock lock(mutex_);
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.slow;
}

// The median, so that one other straggler does not hide this one.
Duration StragglerWatch::elsewhere_locked(int worker, uint32_t program) const {
  const auto found = usual_.find(program);
  if (found == usual_.end()) return {};
  std::vector<Duration> others;
  for (const auto& [other, usual] : found->second) {
    if (other != worker) others.push_back(usual);
  }
  if (others.empty()) return {};
  const auto middle = others.begin() + static_cast<ptrdiff_t>(others.size() / 2);
  std::nth_element(others.begin(), middle, others.end());
  return *middle;
}

void StragglerWatch::name(int worker, const std::string& function, Duration here,
                          Duration elsewhere) {
  Worker& state = workers_[worker];
  if (std::exchange(state.slow, true)) return;
  log_warning("/job:worker/task:", worker, " is slow: closures of function '", function,
              "' take it ", in_milliseconds(here), " ms and others ", in_milliseconds(elsewhere),
              " ms. It still gets closures; look at what else its machine does, or take it out of "
              "the cluster");
}

}  // namespace trireme::internal
