#include "trireme/collective/cluster_group.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/status.h"
#include "trireme/collective/cluster_member.h"
#include "trireme/collective/collective.pb.h"
#include "trireme/collective/collective_host.h"
#include "trireme/collective/gather_loop.h"
#include "trireme/collective/group_watch.h"

// A group forms at rank 0: all members give it their descriptions, and get those of all members and
// the group's id. Members that get the answer sooner may send parcels to members that do not have
// it yet; CollectiveHost keeps these.
namespace trireme::internal {
namespace {

// Health checks are made several times per lease.
constexpr Duration kShortestLease = std::chrono::milliseconds(100);

// A group whose members are tasks of a cluster. The destructor says goodbye.
class ClusterGroup final : public Group {
 public:
  ClusterGroup(std::shared_ptr<ClusterMember> member, Duration lease, bool encrypted,
               std::shared_ptr<LaneTable> lanes)
      : member_(std::move(member)), encrypted_(encrypted), lanes_(std::move(lanes)) {
    std::make_shared<GroupWatch>(member_, lease)->start();
  }
  ~ClusterGroup() override { member_->leave(); }

  const std::string& name() const override { return member_->name(); }
  int rank() const override { return member_->rank(); }
  const std::vector<GroupMember>& members() const override { return member_->members(); }
  bool encrypted() const override { return encrypted_; }
  std::shared_ptr<LaneTable> lanes() override { return lanes_; }
  absl::StatusOr<std::vector<std::string>> exchange(const std::string& key,
                                                    const std::string& bytes,
                                                    Time deadline) override {
    return member_->exchange(key, bytes, deadline);
  }
  void send(int to, Parcel parcel, std::function<void(const absl::Status&)> done) override {
    member_->send(to, std::move(parcel), std::move(done));
  }
  absl::StatusOr<Parcel> receive(uint64_t sequence, Time deadline) override {
    return member_->receive(sequence, deadline);
  }
  void fail(const absl::Status& cause) override { member_->fail(cause); }
  void suspect(int rank, ErrorCode code, const std::string& why) override {
    member_->suspect(rank, code, why);
  }
  absl::Status failure() const override { return member_->failure(); }
  std::stop_token stop_token() const override { return member_->stop_token(); }
  void begin_call(const CollectiveCall& call) override { member_->begin_call(call); }
  void end_call() override { member_->end_call(); }

 private:
  const std::shared_ptr<ClusterMember> member_;
  const bool encrypted_;
  const std::shared_ptr<LaneTable> lanes_;
};

// Returns the identity of the running system; empty if the system does not tell.
std::string read_boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string line;
  std::getline(file, line);
  return line;
}

// Keeps parcels of unknown groups while a group forms.
class FormingScope {
 public:
  explicit FormingScope(CollectiveHost& host) : host_(host) { host_.begin_forming(); }
  ~FormingScope() { host_.end_forming(); }

 private:
  CollectiveHost& host_;
};

absl::StatusOr<int> find_rank(const TaskContext& context, const GroupOptions& options) {
  const auto own = std::ranges::find(options.tasks, context.task);
  if (own == options.tasks.end()) {
    return invalid_argument(absl::StrCat(context.task.to_string(), " is not in the list of the ",
                                         options.tasks.size(), " tasks of group '", options.name,
                                         "'; add it, or do not form the group there"));
  }
  for (const TaskId& task : options.tasks) {
    if (std::ranges::count(options.tasks, task) == 1) continue;
    return invalid_argument(absl::StrCat(task.to_string(), " is more than once in the list of the ",
                                         "tasks of group '", options.name, "'"));
  }
  if (options.lease < kShortestLease) {
    return invalid_argument(absl::StrCat("a lease of ", format_duration(options.lease),
                                         " for group '", options.name, "' is too short; use ",
                                         format_duration(kShortestLease), " or more"));
  }
  if (context.collectives == nullptr) {
    return make_status(ErrorCode::kFailedPrecondition,
                       absl::StrCat(context.task.to_string(), " cannot form group '", options.name,
                                    "': its server was started without collectives"));
  }
  return static_cast<int>(own - options.tasks.begin());
}

absl::StatusOr<std::vector<std::shared_ptr<Channel>>> open_channels(const TaskContext& context,
                                                                    const GroupOptions& options) {
  std::vector<std::shared_ptr<Channel>> channels;
  for (const TaskId& task : options.tasks) {
    TRIREME_ASSIGN_OR_RETURN(const std::string address,
                             try_call([&] { return context.spec.address(task); }));
    channels.push_back(task == context.task ? nullptr
                                            : std::make_shared<Channel>(ChannelOptions{
                                                  .address = address,
                                                  .task = task.to_string(),
                                                  .caller = context.incarnation,
                                                  .caller_task = context.task.to_string(),
                                                  .credentials = context.credentials,
                                                  .faults = context.faults,
                                                  .serving = context.serving}));
  }
  return channels;
}

std::string seat_of(const TaskContext& context) {
  Seat seat;
  seat.set_task(context.task.to_string());
  seat.set_address(context.address);
  seat.set_incarnation(context.incarnation);
  seat.set_boot_id(read_boot_id());
  seat.set_pid(getpid());
  return seat.SerializeAsString();
}

// Reads the descriptions of all members, and compares them with the list of tasks.
absl::StatusOr<std::vector<GroupMember>> read_seats(const TaskContext& context,
                                                    const GroupOptions& options,
                                                    const std::vector<std::string>& gathered) {
  std::vector<GroupMember> members;
  for (size_t rank = 0; rank < gathered.size(); ++rank) {
    Seat seat;
    const TaskId& expected = options.tasks[rank];
    if (!seat.ParseFromString(gathered[rank]) || seat.task() != expected.to_string()) {
      return make_status(
          ErrorCode::kFailedPrecondition,
          absl::StrCat("rank ", rank, " of group '", options.name, "' is ", expected.to_string(),
                       " for ", context.task.to_string(), ", but '", seat.task(),
                       "' has come with this rank; all must have the same list of tasks"));
    }
    members.push_back({.task = expected,
                       .address = seat.address(),
                       .incarnation = seat.incarnation(),
                       .boot_id = seat.boot_id(),
                       .pid = seat.pid()});
  }
  return members;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Group>> form_group(const TaskContext& context,
                                                  const GroupOptions& options) {
  TRIREME_ASSIGN_OR_RETURN(const int rank, find_rank(context, options));
  TRIREME_ASSIGN_OR_RETURN(auto channels, open_channels(context, options));
  const std::shared_ptr<CollectiveHost> host = context.collectives;
  const FormingScope forming(*host);
  const uint64_t ticket = new_incarnation();
  TRIREME_ASSIGN_OR_RETURN(
      const GatherAnswer formed,
      gather_all(
          {.purpose = absl::StrCat("to join group '", options.name, "'"),
           .group = options.name,
           .entry = {.rank = rank,
                     .size = static_cast<int>(options.tasks.size()),
                     .ticket = ticket,
                     .bytes = seat_of(context)},
           .task = context.task.to_string(),
           .root = channels[0].get(),
           .enter =
               [&](GatherEntry entry, GatherTable::Done done) {
                 host->form(options.name, std::move(entry), context.task.to_string(),
                            context.incarnation, std::move(done));
               },
           .withdraw = [&] { host->withdraw(options.name, rank, ticket); },
           .name_of =
               [&](int other) {
                 return absl::StrCat("rank ", other, " (", options.tasks[other].to_string(), ")");
               },
           .note =
               [&](const std::string& missing) {
                 host->note_wait(&options, missing.empty()
                                               ? ""
                                               : absl::StrCat("group '", options.name,
                                                              "' waits for ", missing, " to join"));
               },
           .deadline = options.deadline,
           .stop = options.stop}));
  TRIREME_ASSIGN_OR_RETURN(auto members, read_seats(context, options, formed.gathered));
  auto member =
      std::make_shared<ClusterMember>(ClusterMemberOptions{.id = formed.id,
                                                           .name = options.name,
                                                           .rank = rank,
                                                           .members = std::move(members),
                                                           .channels = std::move(channels),
                                                           .host = host});
  TRIREME_RETURN_IF_ERROR(host->add(member));
  return std::make_shared<ClusterGroup>(std::move(member), options.lease,
                                        context.credentials.is_secure(), context.lanes);
}

}  // namespace trireme::internal
