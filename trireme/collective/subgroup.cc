#include "trireme/collective/subgroup.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

// Returns the place of a rank in the list; -1 if it is not there.
int place_in(const std::vector<int>& ranks, int rank) {
  const auto found = std::ranges::find(ranks, rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

}  // namespace

Subgroup::Subgroup(Group& group, std::vector<int> ranks, int number)
    : ForwardingGroup(group),
      ranks_(std::move(ranks)),
      number_(number),
      rank_(place_in(ranks_, group.rank())) {
  for (const int rank : ranks_) members_.push_back(group.members()[rank]);
}

std::string Subgroup::name_of(int rank) const {
  return ForwardingGroup::name_of(ranks_[rank]);
}

absl::StatusOr<std::vector<std::string>> Subgroup::exchange(const std::string& key,
                                                            const std::string& bytes,
                                                            Time deadline) {
  TRIREME_ASSIGN_OR_RETURN(
      std::vector<std::string> all,
      ForwardingGroup::exchange(absl::StrCat("subgroup ", number_, "/", key), bytes, deadline));
  std::vector<std::string> ours;
  for (const int rank : ranks_) ours.push_back(std::move(all[rank]));
  return ours;
}

void Subgroup::send(int to, Parcel parcel, std::function<void(const absl::Status&)> done) {
  parcel.sequence = sequence_in_group(parcel.sequence);
  ForwardingGroup::send(ranks_[to], std::move(parcel), std::move(done));
}

absl::StatusOr<Parcel> Subgroup::receive(uint64_t sequence, Time deadline) {
  TRIREME_ASSIGN_OR_RETURN(Parcel parcel,
                           ForwardingGroup::receive(sequence_in_group(sequence), deadline));
  parcel.sequence = sequence;
  parcel.from = place_in(ranks_, parcel.from);
  return parcel;
}

void Subgroup::suspect(int rank, ErrorCode code, const std::string& why) {
  ForwardingGroup::suspect(ranks_[rank], code, why);
}

uint64_t Subgroup::sequence_in_group(uint64_t sequence) const {
  // No group lives long enough to make 2^48 calls.
  return sequence | static_cast<uint64_t>(number_) << 48;
}

}  // namespace trireme::internal
