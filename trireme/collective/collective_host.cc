#include "trireme/collective/collective_host.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

// Number of ended groups whose causes are remembered for members that thaw later.
constexpr size_t kEndedGroups = 256;

// Rejects a parcel, or delivers it to its group. The task of the sender is known only if it has a
// certificate.
void deliver_to(HostedGroup& group, uint64_t incarnation, const std::string& task, Parcel parcel) {
  const auto& members = group.members();
  if (parcel.from < 0 || parcel.from >= static_cast<int>(members.size()) ||
      members[parcel.from].incarnation != incarnation ||
      (!task.empty() && members[parcel.from].task.to_string() != task)) {
    return parcel.on_taken(make_status(
        ErrorCode::kPermissionDenied,
        absl::StrCat("the sender is not rank ", parcel.from, " of group '", group.name(), "'")));
  }
  group.deliver(std::move(parcel));
}

}  // namespace

// The rank that the task asks for is not checked until all have come, so it must not decide which
// group has lost a member.
void CollectiveHost::form(const std::string& name, GatherEntry entry, const std::string& task,
                          uint64_t incarnation, GatherTable::Done done) {
  std::vector<std::pair<std::shared_ptr<HostedGroup>, int>> outdated;  // with the rank of the task
  {
    MutexLock lock(mutex_);
    for (const auto& [id, group] : groups_) {
      const auto& members = group->members();
      const auto member = std::ranges::find_if(
          members, [&](const GroupMember& each) { return each.task.to_string() == task; });
      if (group->name() == name && member != members.end() && member->incarnation != incarnation) {
        outdated.emplace_back(group, static_cast<int>(member - members.begin()));
      }
    }
  }
  for (const auto& [group, rank] : outdated) {
    group->fail(member_lost(name, rank, group->members()[rank], ErrorCode::kIncarnationChanged,
                            "the task was restarted"));
  }
  forming_->enter(name, std::move(entry), std::move(done));
}

void CollectiveHost::withdraw(const std::string& name, int rank, uint64_t ticket) {
  forming_->withdraw(name, rank, ticket);
}

void CollectiveHost::begin_forming() {
  MutexLock lock(mutex_);
  ++forming_here_;
}

void CollectiveHost::end_forming() {
  std::vector<EarlyParcel> rejected;
  {
    MutexLock lock(mutex_);
    if (--forming_here_ == 0) rejected.swap(early_);
  }
  for (EarlyParcel& each : rejected) {
    each.parcel.on_taken(
        make_status(ErrorCode::kAborted, "the receiver has not become a member of the group"));
  }
}

bool CollectiveHost::forming() const {
  MutexLock lock(mutex_);
  return forming_here_ > 0;
}

absl::Status CollectiveHost::add(const std::shared_ptr<HostedGroup>& group) {
  std::vector<EarlyParcel> arrived;
  {
    MutexLock lock(mutex_);
    if (closed_) {
      return make_status(ErrorCode::kCancelled,
                         "the task's server was stopped while the group formed");
    }
    groups_[group->id()] = group;
    std::erase_if(early_, [&](EarlyParcel& each) {
      if (each.id != group->id()) return false;
      arrived.push_back(std::move(each));
      return true;
    });
  }
  for (EarlyParcel& each : arrived) {
    deliver_to(*group, each.incarnation, each.task, std::move(each.parcel));
  }
  return absl::OkStatus();
}

void CollectiveHost::remove(uint64_t id, const GroupPosition& last) {
  MutexLock lock(mutex_);
  groups_.erase(id);
  ended_.put(id, last);
  ended_.evict(kEndedGroups);
}

std::shared_ptr<HostedGroup> CollectiveHost::find(uint64_t id) const {
  MutexLock lock(mutex_);
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : found->second;
}

absl::StatusOr<GroupPosition> CollectiveHost::position(uint64_t id) {
  if (const auto group = find(id)) return group->position();
  MutexLock lock(mutex_);
  if (const GroupPosition* last = ended_.find(id)) return *last;
  return make_status(ErrorCode::kNotFound, "the task is not a member of the group");
}

void CollectiveHost::deliver(uint64_t id, uint64_t incarnation, const std::string& task,
                             Parcel parcel) {
  std::shared_ptr<HostedGroup> group;
  absl::Status rejected;
  {
    MutexLock lock(mutex_);
    if (const auto found = groups_.find(id); found != groups_.end()) {
      group = found->second;
    } else if (const GroupPosition* last = ended_.find(id)) {
      rejected = last->failure;
    } else if (forming_here_ > 0) {
      early_.push_back({id, incarnation, task, std::move(parcel)});
    } else {
      rejected = make_status(ErrorCode::kNotFound, "the receiver is not a member of the group");
    }
  }
  if (group != nullptr) return deliver_to(*group, incarnation, task, std::move(parcel));
  if (!rejected.ok()) parcel.on_taken(rejected);
}

void CollectiveHost::note_wait(const void* owner, const std::string& line) {
  MutexLock lock(mutex_);
  if (line.empty()) {
    notes_.erase(owner);
  } else {
    notes_[owner] = line;
  }
}

std::vector<std::string> CollectiveHost::waits() const {
  std::vector<std::string> lines;
  std::vector<std::shared_ptr<HostedGroup>> groups;
  {
    MutexLock lock(mutex_);
    for (const auto& [owner, line] : notes_) lines.push_back(line);
    for (const auto& [id, group] : groups_) groups.push_back(group);
  }
  for (const auto& group : groups) {
    const GroupPosition position = group->position();
    if (!position.failure.ok()) {
      lines.push_back(absl::StrCat("group '", group->name(),
                                   "' has failed: ", std::string(position.failure.message())));
    } else if (!position.call.empty()) {
      lines.push_back(absl::StrCat(
          "call ", position.sequence, " of group '", group->name(), "', ", position.call,
          position.waits_for.empty() ? ", is under way"
                                     : absl::StrCat(", waits for ", position.waits_for),
          " (", format_duration(position.waits), ")"));
    }
  }
  return lines;
}

void CollectiveHost::close() {
  std::vector<std::shared_ptr<HostedGroup>> groups;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    for (const auto& [id, group] : groups_) groups.push_back(group);
  }
  const absl::Status stopped = make_status(ErrorCode::kCancelled, "the task's server was stopped");
  forming_->close(stopped);
  for (const auto& group : groups) group->adopt_failure(stopped);
}

}  // namespace trireme::internal
