#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/gate.h"
#include "trireme/base/mutex.h"
#include "trireme/collective/collective_host.h"
#include "trireme/collective/group.h"
#include "trireme/rpc/channel.h"

namespace trireme::internal {

class MessageStream;  // rpc/message_stream.h

// Options of a ClusterMember.
struct ClusterMemberOptions {
  uint64_t id = 0;  // identity of the group
  std::string name;
  int rank = 0;
  std::vector<GroupMember> members;
  std::vector<std::shared_ptr<Channel>> channels;  // to each member; null for this one
  std::shared_ptr<CollectiveHost> host;
};

// The state of a ClusterGroup, which calls in flight and timers keep alive. Thread-safe. Must be
// held by a shared_ptr.
class ClusterMember final : public HostedGroup, public std::enable_shared_from_this<ClusterMember> {
 public:
  explicit ClusterMember(ClusterMemberOptions options);

  uint64_t id() const override { return options_.id; }
  const std::string& name() const override { return options_.name; }
  const std::vector<GroupMember>& members() const override { return options_.members; }
  void deliver(Parcel parcel) override { mailbox_.deliver(std::move(parcel)); }
  GatherTable& exchanges() override { return *exchanges_; }
  void adopt_failure(const absl::Status& cause) override { end(cause, false); }
  void fail(const absl::Status& cause) override { end(cause, true); }
  void member_left(int rank, uint64_t completed) override;
  GroupPosition position() const override;

  int rank() const { return options_.rank; }
  std::string name_of(int rank) const;
  absl::StatusOr<Parcel> receive(uint64_t sequence, Time deadline) {
    return mailbox_.take(sequence, deadline);
  }
  absl::Status failure() const;
  std::stop_token stop_token() const { return stop_.get_token(); }
  void send(int to, Parcel parcel, std::function<void(const absl::Status&)> done);
  absl::StatusOr<std::vector<std::string>> exchange(const std::string& key,
                                                    const std::string& bytes, Time deadline);
  void begin_call(const CollectiveCall& call);
  void end_call();

  // Says goodbye to the others, unless the group has failed, and ends the group here. Blocks for a
  // second at most. Afterwards no callback of send() is pending.
  void leave();

  // Returns the next member to the right that has not left; nullopt if all others have.
  std::optional<int> right_neighbour() const;
  // Returns true if a member has said goodbye.
  bool has_left(int rank) const;
  // Asks a member for its position. NOT_FOUND if it does not know the group. Calls back once.
  void ask_position(int rank, Time deadline,
                    std::function<void(const absl::StatusOr<GroupPosition>&)> done);
  // Asks all members that have not left, except for this one and `except`, at the same time. Calls
  // back once, after `limit` at most.
  using Positions = std::map<int, absl::StatusOr<GroupPosition>>;
  void ask_positions(std::optional<int> except, Duration limit,
                     std::function<void(const Positions&)> done);
  // Ends the group because a member does not answer. If another member knows of an earlier failure,
  // that is the cause: this member may have been frozen, and the others have gone on without it.
  void suspect(int rank, ErrorCode code, const std::string& why);
  // Stores for whom a call waits, if it is still under way.
  void set_waits_for(uint64_t sequence, const std::string& text);

 private:
  // Ends the group because the call with a parcel was lost: by the receiver, or by this server.
  void on_parcel_lost(int to, const absl::Status& status);
  // Asks all members, except for one, and adopts the failure of which they know. If they know of
  // none, calls `otherwise` with their positions.
  void find_cause(std::optional<int> except, std::function<void(const Positions&)> otherwise);
  // Ends the group because a member was lost, unless it has said goodbye and is not needed.
  void blame(int rank, ErrorCode code, const std::string& why);
  // Ends the group with its first cause.
  void end(const absl::Status& cause, bool tells_others);
  // Calls Fail on all members that have not left.
  void tell_others(const absl::Status& failure, uint64_t completed);
  // Returns the stream for parcels to a member, which is opened once.
  std::shared_ptr<MessageStream> stream_to(int rank);
  void on_sent(int to, const absl::Status& status, Gate::Pass pass,
               const std::function<void(const absl::Status&)>& done);
  // Runs `work` once the group has failed.
  void when_failed(std::function<void()> work);
  absl::Status left_error(int rank) const;

  const ClusterMemberOptions options_;
  const std::shared_ptr<GatherTable> exchanges_ = std::make_shared<GatherTable>();
  Mailbox mailbox_;
  std::stop_source stop_;
  Gate sends_;      // holds parcels in flight
  Gate farewells_;  // holds calls of Fail in flight
  std::atomic<bool> suspecting_ = false;

  mutable Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // OK while the group works
  bool left_here_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> when_failed_ ABSL_GUARDED_BY(mutex_);
  std::map<int, uint64_t> left_ ABSL_GUARDED_BY(mutex_);  // last calls of members that have left
  std::map<int, std::shared_ptr<MessageStream>> streams_ ABSL_GUARDED_BY(mutex_);  // by rank
  const CollectiveCall* call_ ABSL_GUARDED_BY(mutex_) = nullptr;  // the call under way
  Time since_ ABSL_GUARDED_BY(mutex_);                            // time at which it began
  uint64_t sequence_ ABSL_GUARDED_BY(mutex_) = 0;   // number of the call that began last
  uint64_t completed_ ABSL_GUARDED_BY(mutex_) = 0;  // number of the call that ended last
  std::string waits_for_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
