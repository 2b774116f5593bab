#include "trireme/collective/hierarchy_engine.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "trireme/base/status.h"
#include "trireme/collective/agreement.h"
#include "trireme/collective/ring_engine.h"
#include "trireme/collective/ring_lanes.h"
#include "trireme/collective/shm_engine.h"
#include "trireme/collective/subgroup.h"

// Calls are made on two levels. The lowest rank of each host is its leader.
//
//                first, in each host       between the leaders      last, in each host
//   all_reduce   combine the values        combine the results      copy the leader's result
//   broadcast    copy the root's values    copy those of the        copy the leader's values;
//                in its host; or wait      root's host              or wait in the root's host
//   barrier      wait                      wait                     wait
//
// So parcels travel only between hosts, the ring has as many ranks as there are hosts, and all
// ranks have the bits of one result. reduce_scatter, all_gather and all_to_all are left to the ring
// of all ranks, after a barrier: each rank needs other values, so that a leader would only be a
// detour.
//
// All kinds of calls have these three steps, which carry the fingerprint of the whole call. If two
// ranks of a host make different calls, the first step finds out. Otherwise all ranks of a host
// make the same call, and if those of another host make another one, the leaders find out. The last
// step makes sure that no rank has left the call by then.
//
// The steps of a late call end one after the other. A rank that waits for others in the first step
// knows which one is missing. The leaders and the ranks that wait for their leader wait for longer,
// so that they get the error that names it.

namespace trireme::internal {
namespace {

// Numbers of the subgroups.
constexpr int kHostNumber = 1;
constexpr int kLeadersNumber = 2;

// Time after the deadline of a call at which its later steps end. The ring may add a second.
constexpr Duration kLeadersGrace = std::chrono::seconds(1);
constexpr Duration kLastStepGrace = std::chrono::seconds(3);

// Returns a step of a call, which ends after its deadline and `grace`.
CollectiveCall step_of(const CollectiveCall& call, Duration grace) {
  CollectiveCall step = call;
  step.step_of = &call;
  step.deadline = call.deadline < Time::max() - grace ? call.deadline + grace : Time::max();
  return step;
}

// Returns the lowest rank of each host.
std::vector<int> leaders_of(const std::vector<std::vector<int>>& hosts) {
  std::vector<int> leaders;
  for (const std::vector<int>& host : hosts) leaders.push_back(host.front());
  return leaders;
}

bool has_rank(const std::vector<int>& host, int rank) {
  return std::ranges::find(host, rank) != host.end();
}

class HierarchyEngine final : public CollectiveEngine {
 public:
  HierarchyEngine(Group& group, const std::vector<std::vector<int>>& hosts)
      : size_(group.size()),
        hosts_(hosts),
        own_(std::ranges::find_if(hosts_,
                                  [&](const auto& host) { return has_rank(host, group.rank()); }) -
             hosts_.begin()),
        host_(group, hosts_[own_], kHostNumber) {
    if (host_.rank() == 0) leaders_.emplace(group, leaders_of(hosts_), kLeadersNumber);
  }

  // Makes the engines of both levels. All members must call it.
  absl::Status connect(Group& group, Time deadline);

  const char* name() const override { return "hierarchy"; }
  absl::Status run(const CollectiveCall& call) override;
  at::Tensor allocate(int64_t bytes) override { return in_host_->allocate(bytes); }

 private:
  absl::Status run_kind(const CollectiveCall& call);
  absl::Status all_reduce(const CollectiveCall& call);
  absl::Status broadcast(const CollectiveCall& call);
  absl::Status barrier(const CollectiveCall& call);

  const int size_;
  const std::vector<std::vector<int>> hosts_;
  const size_t own_;  // place of this rank's host
  Subgroup host_;
  std::optional<Subgroup> leaders_;  // if this rank is one
  std::unique_ptr<CollectiveEngine> in_host_;
  std::unique_ptr<CollectiveEngine> between_leaders_;  // null unless this rank is one
  std::unique_ptr<CollectiveEngine> between_all_;
  absl::Status failed_;  // After an error the ranks of a host are no longer at the same step.
};

absl::Status HierarchyEngine::connect(Group& group, Time deadline) {
  auto in_host = make_shm_engine(host_, deadline);
  TRIREME_RETURN_IF_ERROR(agree_on_setup(group, "hierarchy/shm", in_host.status(), deadline));
  in_host_ = *std::move(in_host);
  TRIREME_ASSIGN_OR_RETURN(between_all_, make_ring_engine(group, deadline));
  if (leaders_) {
    TRIREME_ASSIGN_OR_RETURN(between_leaders_, make_ring_engine(*leaders_, deadline));
    return absl::OkStatus();
  }
  Subgroup leaders(group, leaders_of(hosts_), kLeadersNumber);  // Their exchanges need all members.
  return connect_ring_lanes(leaders, deadline).status();
}

absl::Status HierarchyEngine::run(const CollectiveCall& call) {
  TRIREME_RETURN_IF_ERROR(failed_);
  const at::NoGradGuard no_grad;
  absl::Status result;
  const absl::Status thrown = try_call([&] { result = run_kind(call); });
  failed_ = thrown.ok() ? result : thrown;
  return failed_;
}

absl::Status HierarchyEngine::run_kind(const CollectiveCall& call) {
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return all_reduce(call);
    case CollectiveKind::kBroadcast:
      return broadcast(call);
    case CollectiveKind::kBarrier:
      return barrier(call);
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
      TRIREME_RETURN_IF_ERROR(barrier(call));
      return between_all_->run(call);
  }
  return make_status(ErrorCode::kInternal, "the hierarchy has no such call");
}

absl::Status HierarchyEngine::all_reduce(const CollectiveCall& call) {
  const bool is_mean = call.reduction == Reduction::kMean;
  const auto step = [&](Duration grace) {
    CollectiveCall combining = step_of(call, grace);
    if (is_mean) combining.reduction = Reduction::kSum;  // Hosts may differ in their ranks.
    return combining;
  };
  TRIREME_RETURN_IF_ERROR(in_host_->run(step(Duration(0))));
  if (leaders_) {
    TRIREME_RETURN_IF_ERROR(between_leaders_->run(step(kLeadersGrace)));
    finish_mean(call.reduction, call.output, size_);
  }
  CollectiveCall last = step_of(call, kLastStepGrace);
  last.kind = CollectiveKind::kBroadcast;
  last.root = 0;
  return in_host_->run(last);
}

absl::Status HierarchyEngine::broadcast(const CollectiveCall& call) {
  const auto from = std::ranges::find_if(
      hosts_, [&](const std::vector<int>& host) { return has_rank(host, call.root); });
  const bool is_here = from == hosts_.begin() + own_;
  CollectiveCall first = step_of(call, Duration(0));
  if (is_here) {
    first.root = static_cast<int>(std::ranges::find(*from, call.root) - from->begin());
  } else {
    first.kind = CollectiveKind::kBarrier;
  }
  TRIREME_RETURN_IF_ERROR(in_host_->run(first));
  if (leaders_) {
    CollectiveCall between = step_of(call, kLeadersGrace);
    between.root = static_cast<int>(from - hosts_.begin());
    TRIREME_RETURN_IF_ERROR(between_leaders_->run(between));
  }
  CollectiveCall last = step_of(call, kLastStepGrace);
  last.root = 0;
  if (is_here) last.kind = CollectiveKind::kBarrier;
  return in_host_->run(last);
}

absl::Status HierarchyEngine::barrier(const CollectiveCall& call) {
  const auto step = [&](Duration grace) {
    CollectiveCall waiting = step_of(call, grace);
    waiting.kind = CollectiveKind::kBarrier;
    waiting.input = waiting.output = at::Tensor();
    return waiting;
  };
  TRIREME_RETURN_IF_ERROR(in_host_->run(step(Duration(0))));
  if (leaders_) TRIREME_RETURN_IF_ERROR(between_leaders_->run(step(kLeadersGrace)));
  return in_host_->run(step(kLastStepGrace));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CollectiveEngine>> make_hierarchy_engine(
    Group& group, const std::vector<std::vector<int>>& hosts, Time deadline) {
  auto engine = std::make_unique<HierarchyEngine>(group, hosts);
  TRIREME_RETURN_IF_ERROR(engine->connect(group, deadline));
  return engine;
}

}  // namespace trireme::internal
