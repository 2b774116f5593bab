#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/collective/cluster_member.h"
#include "trireme/rpc/connect.h"

namespace trireme::internal {

// Checks the health of a member's right neighbour, so that each member of a group is checked by one
// other, and logs for whom a long call waits. Ends with the group, or when the member is gone. Must
// be held by a shared_ptr; its calls and timers keep it alive.
class GroupWatch : public std::enable_shared_from_this<GroupWatch> {
 public:
  // A neighbour that does not answer for the lease was lost.
  GroupWatch(const std::shared_ptr<ClusterMember>& member, Duration lease);

  // Begins to check.
  void start();

 private:
  void tick();
  // Begins a health check, or ends the group if the neighbour has been silent for too long.
  void check(ClusterMember& member, Time now);
  void on_checked(int rank, const absl::StatusOr<GroupPosition>& position);
  // Finds out whether the neighbour's address refuses connections.
  void probe(ClusterMember& member, int rank);
  // Finds out for whom the call under way waits, if it takes long.
  void look_for_missing(ClusterMember& member, Time now);
  void report(ClusterMember& member, uint64_t sequence, const ClusterMember::Positions& positions);

  const std::weak_ptr<ClusterMember> member_;
  const Duration lease_, interval_;
  const Time formed_;  // time at which the group was formed

  Mutex mutex_;
  Time due_ ABSL_GUARDED_BY(mutex_);            // time of the next tick
  int neighbour_ ABSL_GUARDED_BY(mutex_) = -1;  // rank that is checked; -1 for none
  // True while a check, or a probe, of this neighbour is in flight.
  bool is_checking_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_probing_ ABSL_GUARDED_BY(mutex_) = false;
  // Time of the first check that was not answered; nullopt if the last one was.
  std::optional<Time> silent_since_ ABSL_GUARDED_BY(mutex_);
  uint64_t reported_call_ ABSL_GUARDED_BY(mutex_) = 0;  // call to which the next two belong
  Time next_look_ ABSL_GUARDED_BY(mutex_);
  ReportTimes reports_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
