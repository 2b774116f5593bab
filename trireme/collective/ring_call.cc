#include "trireme/collective/ring_call.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

// Time after the deadline for which a rank waits if its neighbours have made the call.
constexpr Duration kGrace = std::chrono::seconds(1);

}  // namespace

RingCall::RingCall(Group& group, ParcelSender& sender, const CollectiveCall& call)
    : group_(group),
      sender_(sender),
      call_(call),
      description_(describe_call(call)),
      fingerprint_(fingerprint(call)),
      heard_(group.size()) {}

Parcel RingCall::make_parcel(uint32_t slot, at::Tensor payload) const {
  // Parcels may overtake each other, so all of them have the description.
  Parcel parcel;
  parcel.from = rank();
  parcel.sequence = call_.sequence;
  parcel.slot = slot;
  parcel.call_fingerprint = fingerprint_;
  parcel.call_description = description_;
  if (payload.defined() && payload.numel() > 0) parcel.payload = std::move(payload);
  return parcel;
}

void RingCall::send(int to, uint32_t slot, at::Tensor payload) {
  sender_.send(to, make_parcel(slot, std::move(payload)));
}

void RingCall::enqueue(int to, uint32_t slot, at::Tensor payload, bool urgent) {
  sender_.enqueue(to, make_parcel(slot, std::move(payload)), urgent);
}

absl::Status RingCall::flush() {
  const absl::Status status = sender_.flush(call_.deadline);
  if (status.ok()) return status;
  if (const absl::Status failure = group_.failure(); !failure.ok()) return failure;
  return error_code(status) == ErrorCode::kDeadlineExceeded ? late({right()}) : status;
}

absl::StatusOr<Parcel> RingCall::next(const std::vector<int>& waits_for) {
  auto parcel = group_.receive(call_.sequence, call_.deadline);
  if (!parcel.ok() && group_.failure().ok()) {
    parcel = group_.receive(call_.sequence, time_to_give_up(waits_for));
  }
  if (parcel.ok()) return check(*std::move(parcel));
  if (const absl::Status failure = group_.failure(); !failure.ok()) return failure;
  return error_code(parcel.status()) == ErrorCode::kDeadlineExceeded ? late(waits_for)
                                                                     : parcel.status();
}

Time RingCall::time_to_give_up(const std::vector<int>& waits_for) const {
  const bool waits_longer = call_.deadline < Time::max() - kGrace && silent(waits_for).empty();
  return waits_longer ? call_.deadline + kGrace : call_.deadline;
}

absl::StatusOr<Parcel> RingCall::take(int from, uint32_t slot) {
  while (true) {
    auto found = early_.extract({from, slot});
    if (found) return std::move(found.mapped());
    TRIREME_ASSIGN_OR_RETURN(Parcel parcel, next({from}));
    const std::pair<int, uint32_t> key(parcel.from, parcel.slot);
    early_.emplace(key, std::move(parcel));
  }
}

absl::StatusOr<Parcel> RingCall::check(Parcel parcel) {
  if (parcel.from < 0 || parcel.from >= size()) return unexpected(parcel);
  heard_[parcel.from] = true;
  if (parcel.call_fingerprint == fingerprint_) return parcel;
  group_.fail(mismatch_error(call_.sequence, group_.name_of(rank()), description_,
                             group_.name_of(parcel.from), parcel.call_description));
  return group_.failure();
}

absl::Status RingCall::unexpected(const Parcel& parcel) const {
  const bool is_member = parcel.from >= 0 && parcel.from < size();
  return make_status(
      ErrorCode::kInternal,
      absl::StrCat(is_member ? group_.name_of(parcel.from) : "a task that is not a member",
                   " sent a parcel for slot ", parcel.slot, " of ", description_, ", call ",
                   call_.sequence, " of group '", group_.name(),
                   "', which has no such parcel, or has had it already; run the same Trireme "
                   "release on every task"));
}

std::vector<int> RingCall::silent(const std::vector<int>& ranks) const {
  std::vector<int> silent;
  std::ranges::copy_if(ranks, std::back_inserter(silent), [&](int rank) {
    return !heard_[rank] && !sender_.was_taken_by(rank, call_.sequence);
  });
  return silent;
}

absl::Status RingCall::late(const std::vector<int>& waits_for) const {
  const std::vector<int> missing = silent(waits_for);
  std::vector<int> ranks = missing.empty() ? waits_for : missing;
  // Both neighbours may be one rank.
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  const std::string names =
      absl::StrJoin(ranks, ", ", [&](std::string* out, int rank) { *out += group_.name_of(rank); });
  return make_status(
      ErrorCode::kDeadlineExceeded,
      absl::StrCat(description_, ", call ", call_.sequence, " of group '", group_.name(),
                   "', was not complete before its deadline: ", group_.name_of(rank()),
                   " waited for ", names,
                   missing.empty() ? ", which made the call but did not complete it"
                                   : ", which did not make the call",
                   "; check that all ranks make the same calls, or raise call_timeout"),
      {.task = group_.members()[ranks.front()].task.to_string()});
}

}  // namespace trireme::internal
