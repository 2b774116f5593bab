#include "trireme/collective/group_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/rpc/connection_probe.h"
#include "trireme/rpc/retrying_call.h"
#include "trireme/rpc/timer.h"

// A timer ticks a few times per lease. Each tick begins a check if none is in flight. The check has
// the lease as its limit, so that a late answer counts. A neighbour is lost if it has not answered
// for the lease, if its address refuses connections, or if it was restarted. Its answer also has
// the cause if the group has failed, and says whether the neighbour has left; then the next one is
// checked.
//
// A check that was cancelled shows nothing about the neighbour: this server ends its calls when it
// is stopped.
//
// If a tick itself is late by half a lease, this process was frozen, and the silence of the
// neighbour shows nothing. The lease begins anew.
namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kLongestInterval = milliseconds(250);
constexpr auto kRefusalTime = seconds(1);
// Time after which it is found out for whom a call waits, and the interval of doing so.
constexpr auto kLongWait = seconds(2);

}  // namespace

GroupWatch::GroupWatch(const std::shared_ptr<ClusterMember>& member, Duration lease)
    : member_(member),
      lease_(lease),
      interval_(std::min(lease / 4, kLongestInterval)),
      formed_(Clock::real().now()),
      due_(formed_),
      reports_(formed_) {}

void GroupWatch::start() {
  tick();
}

void GroupWatch::tick() {
  const auto member = member_.lock();
  if (member == nullptr || member->stop_token().stop_requested()) return;
  const Time now = Clock::real().now();
  check(*member, now);
  look_for_missing(*member, now);
  Time next;
  {
    MutexLock lock(mutex_);
    due_ = now + interval_;
    if (silent_since_) due_ = std::min(due_, std::max(*silent_since_ + lease_, now));
    next = due_;
  }
  run_at(next, [self = shared_from_this()] { self->tick(); });
}

void GroupWatch::check(ClusterMember& member, Time now) {
  const int neighbour = member.right_neighbour().value_or(-1);
  bool is_lost = false;
  {
    MutexLock lock(mutex_);
    const bool was_frozen = now - due_ > lease_ / 2;
    if (was_frozen && silent_since_) silent_since_ = now;
    if (neighbour != neighbour_) {
      // A check or probe of the former one that is still in flight must not delay those of this
      // one.
      silent_since_.reset();
      is_checking_ = is_probing_ = false;
    }
    neighbour_ = neighbour;
    if (neighbour < 0) return;
    is_lost = silent_since_ && now - *silent_since_ >= lease_;
    if (is_lost) {
      silent_since_ = now;  // the suspicion takes a moment
    } else {
      if (std::exchange(is_checking_, true)) return;
      if (!silent_since_) silent_since_ = now;
    }
  }
  if (is_lost) {
    return member.suspect(neighbour, ErrorCode::kDeadlineExceeded,
                          absl::StrCat("it has not answered for ", format_duration(lease_),
                                       "; it is frozen, overloaded or cut off"));
  }
  member.ask_position(neighbour, now + lease_,
                      [self = shared_from_this(), neighbour](const auto& position) {
                        self->on_checked(neighbour, position);
                      });
}

void GroupWatch::on_checked(int rank, const absl::StatusOr<GroupPosition>& position) {
  const auto member = member_.lock();
  if (member == nullptr) return;
  const ErrorCode code = error_code(position.status());
  {
    MutexLock lock(mutex_);
    if (rank != neighbour_) return;
    is_checking_ = false;
    // NOT_FOUND is an answer too.
    if (position.ok() || code == ErrorCode::kNotFound) silent_since_.reset();
  }
  if (position.ok()) {
    if (position->left) return member->member_left(rank, position->sequence);
    if (!position->failure.ok()) member->adopt_failure(position->failure);
  } else if (code == ErrorCode::kTaskUnreachable) {
    probe(*member, rank);
  } else if (code == ErrorCode::kIncarnationChanged) {
    member->suspect(rank, code, "the task was restarted");
  } else if (code == ErrorCode::kNotFound) {
    // The group's formation may not have reached the neighbour yet.
    if (Clock::real().now() - formed_ < lease_) return;
    member->suspect(rank, ErrorCode::kAborted, "it has not become a member");
  } else if (code != ErrorCode::kCancelled && !is_retryable(position.status())) {
    member->suspect(rank, code, std::string(position.status().message()));
  }
}

void GroupWatch::probe(ClusterMember& member, int rank) {
  {
    MutexLock lock(mutex_);
    if (rank != neighbour_ || std::exchange(is_probing_, true)) return;
  }
  find_refusal(member.members()[rank].address, after(kRefusalTime),
               [self = shared_from_this(), rank](bool refused) {
                 {
                   MutexLock lock(self->mutex_);
                   if (rank != self->neighbour_) return;
                   self->is_probing_ = false;
                 }
                 const auto member = self->member_.lock();
                 if (!refused || member == nullptr) return;
                 member->suspect(rank, ErrorCode::kTaskUnreachable,
                                 "no process listens at its address, so it has ended");
               });
}

void GroupWatch::look_for_missing(ClusterMember& member, Time now) {
  const GroupPosition position = member.position();
  if (position.call.empty() || position.waits < kLongWait) return;
  {
    MutexLock lock(mutex_);
    if (reported_call_ != position.sequence) {
      reported_call_ = position.sequence;
      reports_ = ReportTimes(now - position.waits);
      next_look_ = now;
    }
    if (now < next_look_) return;
    next_look_ = now + kLongWait;
  }
  member.ask_positions(std::nullopt, kLongWait / 2,
                       [self = shared_from_this(),
                        sequence = position.sequence](const ClusterMember::Positions& positions) {
                         const auto member = self->member_.lock();
                         if (member != nullptr) self->report(*member, sequence, positions);
                       });
}

void GroupWatch::report(ClusterMember& member, uint64_t sequence,
                        const ClusterMember::Positions& positions) {
  std::string missing;
  for (const auto& [rank, position] : positions) {
    if (position.ok() && position->sequence >= sequence) continue;
    absl::StrAppend(&missing, missing.empty() ? "" : ", ", member.name_of(rank));
    if (!position.ok()) {
      absl::StrAppend(&missing, ", which does not answer");
    } else if (position->sequence == 0) {
      absl::StrAppend(&missing, ", which has made no call yet");
    } else {
      absl::StrAppend(&missing, ", which is at call ", position->sequence);
    }
  }
  member.set_waits_for(sequence, missing);
  const GroupPosition now = member.position();
  if (now.sequence != sequence || now.call.empty()) return;  // it has ended in the meantime
  {
    MutexLock lock(mutex_);
    if (!reports_.due(Clock::real().now())) return;
  }
  log_info(now.call, " call ", sequence, " of group '", member.name(), "' ",
           missing.empty() ? "has been under way on all ranks for " + format_duration(now.waits)
                           : "waits for " + missing);
}

}  // namespace trireme::internal
