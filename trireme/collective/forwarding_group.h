#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/collective/group.h"

namespace trireme::internal {

// Base of groups that differ from another group in a few respects, and otherwise are that group.
// Thread-safe.
class ForwardingGroup : public Group {
 public:
  // The group must outlive the object.
  explicit ForwardingGroup(Group& group) : group_(group) {}

  const std::string& name() const override { return group_.name(); }
  int rank() const override { return group_.rank(); }
  const std::vector<GroupMember>& members() const override { return group_.members(); }
  bool encrypted() const override { return group_.encrypted(); }
  std::shared_ptr<LaneTable> lanes() override { return group_.lanes(); }
  std::string name_of(int rank) const override { return group_.name_of(rank); }
  absl::StatusOr<std::vector<std::string>> exchange(const std::string& key,
                                                    const std::string& bytes,
                                                    Time deadline) override {
    return group_.exchange(key, bytes, deadline);
  }
  void send(int to, Parcel parcel, std::function<void(const absl::Status&)> done) override {
    group_.send(to, std::move(parcel), std::move(done));
  }
  absl::StatusOr<Parcel> receive(uint64_t sequence, Time deadline) override {
    return group_.receive(sequence, deadline);
  }
  void fail(const absl::Status& cause) override { group_.fail(cause); }
  void suspect(int rank, ErrorCode code, const std::string& why) override {
    group_.suspect(rank, code, why);
  }
  absl::Status failure() const override { return group_.failure(); }
  std::stop_token stop_token() const override { return group_.stop_token(); }
  void begin_call(const CollectiveCall& call) override { group_.begin_call(call); }
  void end_call() override { group_.end_call(); }

 private:
  Group& group_;
};

}  // namespace trireme::internal
