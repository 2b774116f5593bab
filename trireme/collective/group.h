#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/cluster/task_id.h"
#include "trireme/collective/mailbox.h"

namespace trireme::internal {

class LaneTable;        // rpc/lane.h
struct CollectiveCall;  // collective/call.h

// A task in a group. Its rank is its place in the list of members.
struct GroupMember {
  TaskId task;
  std::string address;       // host:port of the task
  uint64_t incarnation = 0;  // start of the task that belongs to the group
  std::string boot_id;       // identity of the running system of the task's machine
  int64_t pid = 0;
};

// Tasks that make the same collective calls. A group ends with its first failure, for all members:
// a member that is lost, frozen for longer than the lease, or makes another call. A failed group
// stays failed, so that a member that thaws later cannot disturb the others. Thread-safe.
class Group {
 public:
  virtual ~Group() = default;

  virtual const std::string& name() const = 0;
  virtual int rank() const = 0;
  virtual const std::vector<GroupMember>& members() const = 0;
  int size() const { return static_cast<int>(members().size()); }
  // Returns true if the members have certificates, so that traffic between them must be encrypted.
  virtual bool encrypted() const { return false; }
  // Returns the lanes that other members make to this one through the port of its task; null if the
  // members of the group use none.
  virtual std::shared_ptr<LaneTable> lanes() { return nullptr; }
  // Returns a member as errors name it: "rank 1 (/job:worker/task:1)".
  virtual std::string name_of(int rank) const;

  // Gives a few bytes to all members and returns those of all, by rank. All members must call it
  // with the same keys. Each key may be used once. Blocks until all have called it, at most until
  // the deadline, and logs which members are missing.
  virtual absl::StatusOr<std::vector<std::string>> exchange(const std::string& key,
                                                            const std::string& bytes,
                                                            Time deadline) = 0;

  // Sends a parcel to the mailbox of another member. `done` is called once, with OK when the
  // member has taken it out of the mailbox. Does not block. The tensor must not change before the
  // member has received it.
  virtual void send(int to, Parcel parcel, std::function<void(const absl::Status&)> done) = 0;
  // Takes the next parcel of a call out of the mailbox of this member, from any sender. Blocks
  // until there is one, at most until the deadline or until the group fails. A parcel of a call
  // with the same number that is another call is returned too: the caller compares fingerprints.
  virtual absl::StatusOr<Parcel> receive(uint64_t sequence, Time deadline) = 0;

  // Ends the group with an error, and broadcasts it to the members. The first cause counts.
  virtual void fail(const absl::Status& cause) = 0;
  // Ends the group because a member was lost, unless another member knows of an earlier cause.
  virtual void suspect(int rank, ErrorCode code, const std::string& why);
  // Returns the cause of the failure; OK while the group works.
  virtual absl::Status failure() const = 0;
  // Returns a token that stops when the group fails.
  virtual std::stop_token stop_token() const = 0;

  // Say which call is under way, so that others learn who waits for whom. Cheap. The call must live
  // until end_call(), which is due even if it failed. One call is under way at a time.
  virtual void begin_call(const CollectiveCall& call) { (void)call; }
  virtual void end_call() {}
};

// Returns the error for a member that was lost: "rank 2 (/job:worker/task:2) of group 'x' was lost:
// it was restarted". Its origin is the member's task.
absl::Status member_lost(const std::string& group, int rank, const GroupMember& member,
                         ErrorCode code, const std::string& why);

}  // namespace trireme::internal
