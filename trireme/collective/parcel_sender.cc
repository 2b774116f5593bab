#include "trireme/collective/parcel_sender.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

// Parcels that are under way at most. Enough that the network always has the next one, and few
// enough that a receiver keeps little memory for them.
constexpr int kWindow = 4;

}  // namespace

struct ParcelSender::State : std::enable_shared_from_this<ParcelSender::State> {
  struct QueuedParcel {
    int to;
    Parcel parcel;
  };

  explicit State(Group& group) : stop(group.stop_token()), group(&group), taken(group.size()) {}

  // Sends a parcel that was counted in under_way.
  void start(QueuedParcel queued);
  // Called when a parcel was taken or lost.
  void on_done(int to, uint64_t sequence, const absl::Status& status);
  // Returns the next parcel to send, and counts it. Otherwise takes back the count of a parcel that
  // is done. One lock covers both, since enqueue() leaves a parcel in a queue only if parcels that
  // are counted will look there.
  std::optional<QueuedParcel> next_or_end();

  const std::stop_token stop;
  Mutex mutex;
  CondVar changed;
  Group* group ABSL_GUARDED_BY(mutex);  // null once it may be gone
  int under_way ABSL_GUARDED_BY(mutex) = 0;
  std::deque<QueuedParcel> urgent ABSL_GUARDED_BY(mutex);
  std::deque<QueuedParcel> waiting ABSL_GUARDED_BY(mutex);
  absl::Status error ABSL_GUARDED_BY(mutex);           // first error of a send
  std::vector<uint64_t> taken ABSL_GUARDED_BY(mutex);  // latest call of a taken parcel, by rank
};

void ParcelSender::State::start(QueuedParcel queued) {
  Group* target;
  {
    MutexLock lock(mutex);
    target = group;
  }
  if (target == nullptr) return;
  const uint64_t sequence = queued.parcel.sequence;
  // The callback may come before send() returns, so no lock is held.
  target->send(queued.to, std::move(queued.parcel),
               [state = shared_from_this(), to = queued.to, sequence](const absl::Status& status) {
                 state->on_done(to, sequence, status);
               });
}

void ParcelSender::State::on_done(int to, uint64_t sequence, const absl::Status& status) {
  Group* failed = nullptr;
  {
    MutexLock lock(mutex);
    if (!status.ok()) {
      failed = group;
      if (error.ok()) error = status;
      urgent.clear();
      waiting.clear();
    } else {
      taken[to] = std::max(taken[to], sequence);
    }
  }
  // The parcel still counts as under way, so the group lives.
  if (failed != nullptr) failed->fail(status);
  while (std::optional<QueuedParcel> next = next_or_end()) start(*std::move(next));
}

std::optional<ParcelSender::State::QueuedParcel> ParcelSender::State::next_or_end() {
  {
    MutexLock lock(mutex);
    std::deque<QueuedParcel>& queue = urgent.empty() ? waiting : urgent;
    if (under_way <= kWindow && !queue.empty()) {
      std::optional<QueuedParcel> next = std::move(queue.front());
      queue.pop_front();
      ++under_way;
      return next;
    }
    if (--under_way > 0) return std::nullopt;
  }
  changed.notify_all();
  return std::nullopt;
}

ParcelSender::ParcelSender(Group& group) : state_(std::make_shared<State>(group)) {}

ParcelSender::~ParcelSender() {
  const Time limit = after(std::chrono::seconds(5));
  MutexLock lock(state_->mutex);
  while (state_->under_way > 0 && state_->changed.wait_until(state_->mutex, limit)) {
  }
  state_->group = nullptr;
}

void ParcelSender::send(int to, Parcel parcel) {
  {
    MutexLock lock(state_->mutex);
    ++state_->under_way;
  }
  state_->start({to, std::move(parcel)});
}

void ParcelSender::enqueue(int to, Parcel parcel, bool urgent) {
  {
    MutexLock lock(state_->mutex);
    if (state_->under_way >= kWindow) {
      (urgent ? state_->urgent : state_->waiting).push_back({to, std::move(parcel)});
      return;
    }
    ++state_->under_way;
  }
  state_->start({to, std::move(parcel)});
}

absl::Status ParcelSender::flush(Time deadline) {
  // Wakes the wait below. The lock makes sure that a waiter that saw no failure is asleep by now.
  const std::stop_callback on_failure(state_->stop, [state = state_] {
    { MutexLock lock(state->mutex); }
    state->changed.notify_all();
  });
  MutexLock lock(state_->mutex);
  for (bool in_time = true;;) {
    if (!state_->error.ok()) return state_->error;
    if (state_->under_way == 0) return absl::OkStatus();
    if (state_->stop.stop_requested() || !in_time) break;
    in_time = state_->changed.wait_until(state_->mutex, deadline);
  }
  return make_status(ErrorCode::kDeadlineExceeded, "parcels were not taken");
}

bool ParcelSender::was_taken_by(int rank, uint64_t sequence) const {
  MutexLock lock(state_->mutex);
  return state_->taken[rank] >= sequence;
}

}  // namespace trireme::internal
