#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/lru_map.h"
#include "trireme/base/mutex.h"
#include "trireme/collective/gather_table.h"
#include "trireme/collective/group.h"
#include "trireme/collective/mailbox.h"

namespace trireme::internal {

// The progress of a member of a group.
struct GroupPosition {
  uint64_t sequence = 0;  // number of the call under way, or of the last one
  std::string call;       // description of the call under way; empty for none
  Duration waits = {};    // time since the call under way began
  std::string waits_for;  // members for which it waits; empty if not known
  absl::Status failure;   // cause for which the group has ended here; OK while it works
  bool left = false;      // true if it has ended because the member left after `sequence`
};

// The member of a group in this process, as calls of other members reach it. Thread-safe.
class HostedGroup {
 public:
  virtual ~HostedGroup() = default;

  virtual uint64_t id() const = 0;
  virtual const std::string& name() const = 0;
  virtual const std::vector<GroupMember>& members() const = 0;
  virtual void deliver(Parcel parcel) = 0;
  // Collects the bytes of an exchange. Called at rank 0 only.
  virtual GatherTable& exchanges() = 0;
  // Takes note that the group has failed. Unlike fail(), it does not tell the others.
  virtual void adopt_failure(const absl::Status& cause) = 0;
  // Ends the group, and tells the others.
  virtual void fail(const absl::Status& cause) = 0;
  // Takes note that a member has left after it has completed a call.
  virtual void member_left(int rank, uint64_t completed) = 0;
  virtual GroupPosition position() const = 0;
};

// Finds the groups of a server, for its service and for its program. Holds rounds in which groups
// form, parcels that arrive before their group has formed here, and the ends of the last groups.
// Thread-safe.
class CollectiveHost {
 public:
  // Joins a round in which a group forms, for a task. At rank 0 only. A group of this name to which
  // another incarnation of the task belongs fails.
  void form(const std::string& name, GatherEntry entry, const std::string& task,
            uint64_t incarnation, GatherTable::Done done);
  void withdraw(const std::string& name, int rank, uint64_t ticket);

  // Announces that the program forms a group. Until the matching end_forming(), parcels of unknown
  // groups are kept.
  void begin_forming();
  void end_forming();
  // Returns true between the two: calls of unknown groups may be early.
  bool forming() const;

  // Adds a group, and delivers the parcels that have come for it. Fails if the server has stopped.
  absl::Status add(const std::shared_ptr<HostedGroup>& group);
  // Removes a group, and remembers its last position.
  void remove(uint64_t id, const GroupPosition& last);

  // Returns the group; null if it is unknown or has ended.
  std::shared_ptr<HostedGroup> find(uint64_t id) const;
  // Returns the position of a group, also of one that has ended. NOT_FOUND if it is unknown.
  absl::StatusOr<GroupPosition> position(uint64_t id);
  // Delivers a parcel from the sender with this incarnation, and with this task if it is not empty.
  void deliver(uint64_t id, uint64_t incarnation, const std::string& task, Parcel parcel);

  // Adds a line to waits(), in place of the former line of the same owner; "" removes it.
  void note_wait(const void* owner, const std::string& line);
  // Returns one line for each group that waits for members.
  std::vector<std::string> waits() const;

  // Ends all groups: the server has stopped.
  void close();

 private:
  struct EarlyParcel {
    uint64_t id;
    uint64_t incarnation;
    std::string task;
    Parcel parcel;
  };

  const std::shared_ptr<GatherTable> forming_ = std::make_shared<GatherTable>();
  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  int forming_here_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::shared_ptr<HostedGroup>> groups_ ABSL_GUARDED_BY(mutex_);
  LruMap<uint64_t, GroupPosition> ended_ ABSL_GUARDED_BY(mutex_);
  std::vector<EarlyParcel> early_ ABSL_GUARDED_BY(mutex_);
  std::map<const void*, std::string> notes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
