#pragma once

#include <string>
#include <vector>

#include "trireme/collective/forwarding_group.h"

namespace trireme::internal {

// Some members of a group, with ranks of their own from 0. Errors name members by their ranks in
// the whole group. A failure of the subgroup is one of the whole group, and the other way round.
class Subgroup final : public ForwardingGroup {
 public:
  // `ranks` has the ranks of the members in the whole group, in ascending order. A member that is
  // not among them has the rank -1, and only takes part in exchanges. Subgroups that have members
  // in common need different numbers, which keep their parcels apart. The group must outlive the
  // object.
  Subgroup(Group& group, std::vector<int> ranks, int number);

  int rank() const override { return rank_; }
  const std::vector<GroupMember>& members() const override { return members_; }
  std::string name_of(int rank) const override;
  // Is an exchange of the whole group, in which all of its members must take part: each through a
  // subgroup with the same number.
  absl::StatusOr<std::vector<std::string>> exchange(const std::string& key,
                                                    const std::string& bytes,
                                                    Time deadline) override;
  void send(int to, Parcel parcel, std::function<void(const absl::Status&)> done) override;
  absl::StatusOr<Parcel> receive(uint64_t sequence, Time deadline) override;
  void suspect(int rank, ErrorCode code, const std::string& why) override;

 private:
  // Returns the number in the whole group that stands for a call of the subgroup.
  uint64_t sequence_in_group(uint64_t sequence) const;

  const std::vector<int> ranks_;
  const int number_;
  const int rank_;
  std::vector<GroupMember> members_;
};

}  // namespace trireme::internal
