#include "trireme/collective/cluster_member.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/collective/call.h"
#include "trireme/collective/collective.pb.h"
#include "trireme/collective/gather_loop.h"
#include "trireme/collective/group_failure.h"
#include "trireme/collective/group_service.h"
#include "trireme/rpc/call_and_wait.h"
#include "trireme/rpc/message_stream.h"
#include "trireme/rpc/retrying_call.h"

// A group ends here in end(), with the first cause that arrives: from this program, from a member
// that tells (Fail), from a member that is asked (Position), or from a call that was lost. The
// member that finds a cause broadcasts it. If it is killed while it does so, the health checks
// carry the cause from member to member.
//
// A lost call does not show which side is at fault. If this process was frozen, the others have
// given it up and are gone, and all of its calls fail. So suspect() asks the other members first.
namespace trireme::internal {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Limit of calls that tell a member about the end of the group.
constexpr auto kTellTime = seconds(1);
// Time in which other members may say that they know of an earlier failure.
constexpr auto kAskOthersTime = milliseconds(250);
// Parcels wait for as long as the receiver's call takes, so health checks bound them, not a
// deadline.
constexpr auto kSendTime = hours(24);
// Largest tensor of a parcel that is sent on a stream: one frame with room for the rest.
constexpr size_t kLargestStreamed = kMaxFrameBytes - (64 << 10);

absl::StatusOr<GroupPosition> to_position(const Response& answer) {
  if (!answer.ok()) return answer.status();
  TRIREME_ASSIGN_OR_RETURN(const auto response, parse_body<GroupPositionResponse>(*answer));
  if (!response.known()) {
    return make_status(ErrorCode::kNotFound, "the task is not a member of the group");
  }
  return GroupPosition{
      .sequence = response.sequence(),
      .call = response.call(),
      .waits = milliseconds(response.waits_ms()),
      .waits_for = response.waits_for(),
      .failure = response.has_failure() ? to_failure(response.failure()) : absl::OkStatus(),
      .left = response.left()};
}

}  // namespace

ClusterMember::ClusterMember(ClusterMemberOptions options) : options_(std::move(options)) {}

std::string ClusterMember::name_of(int rank) const {
  return absl::StrCat("rank ", rank, " (", members()[rank].task.to_string(), ")");
}

absl::Status ClusterMember::left_error(int rank) const {
  return make_status(ErrorCode::kAborted,
                     absl::StrCat(name_of(rank), " left the group '", name(),
                                  "' while others still need it; all ranks must make the same "
                                  "calls before they end"),
                     {members()[rank].task.to_string(), ""});
}

absl::Status ClusterMember::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

void ClusterMember::end(const absl::Status& cause, bool tells_others) {
  std::vector<std::function<void()>> work;
  uint64_t completed;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = cause;
    completed = completed_;
    work.swap(when_failed_);
  }
  log_warning(members()[rank()].task.to_string(), ": group '", name(),
              "' has failed: ", std::string(cause.message()));
  if (tells_others) tell_others(cause, completed);
  mailbox_.close(cause);
  exchanges_->close(cause);
  stop_.request_stop();
  for (const auto& each : work) each();
}

void ClusterMember::when_failed(std::function<void()> work) {
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) return when_failed_.push_back(std::move(work));
  }
  work();
}

void ClusterMember::tell_others(const absl::Status& failure, uint64_t completed) {
  FailGroupRequest request;
  request.set_group_id(id());
  request.set_from(rank());
  request.set_completed(completed);
  if (!failure.ok()) set_failure(failure, *request.mutable_failure());
  const Message message = make_message(request);
  for (int other = 0; other < static_cast<int>(members().size()); ++other) {
    if (other == rank() || has_left(other)) continue;
    Gate::Pass pass = farewells_.enter();
    if (!pass) return;
    options_.channels[other]->call(
        kFailGroup, message,
        {.deadline = after(kTellTime), .incarnation = members()[other].incarnation},
        [self = shared_from_this(), pass = std::move(pass)](const Response&) mutable {
          pass = Gate::Pass();  // before the gate's owner may be destroyed
        });
  }
}

void ClusterMember::leave() {
  absl::Status cause;
  bool leaves;
  uint64_t completed;
  std::vector<std::function<void()>> work;
  {
    MutexLock lock(mutex_);
    leaves = left_here_ = failure_.ok();
    if (leaves) failure_ = left_error(rank());
    cause = failure_;
    completed = completed_;
    work.swap(when_failed_);
  }
  if (leaves) tell_others(absl::OkStatus(), completed);
  farewells_.close(after(kTellTime));
  mailbox_.close(cause);
  exchanges_->close(cause);
  stop_.request_stop();
  options_.host->remove(id(), {.sequence = completed, .failure = cause, .left = leaves});
  for (const auto& each : work) each();
  sends_.close(after(kTellTime));
}

void ClusterMember::member_left(int rank, uint64_t completed) {
  bool is_needed;
  {
    MutexLock lock(mutex_);
    left_.emplace(rank, completed);
    is_needed = call_ != nullptr && sequence_ > completed;
  }
  if (is_needed) fail(left_error(rank));
}

bool ClusterMember::has_left(int rank) const {
  MutexLock lock(mutex_);
  return left_.contains(rank);
}

std::optional<int> ClusterMember::right_neighbour() const {
  const int size = static_cast<int>(members().size());
  MutexLock lock(mutex_);
  for (int distance = 1; distance < size; ++distance) {
    const int other = (rank() + distance) % size;
    if (!left_.contains(other)) return other;
  }
  return std::nullopt;
}

void ClusterMember::begin_call(const CollectiveCall& call) {
  int gone = -1;
  {
    MutexLock lock(mutex_);
    call_ = &call;
    since_ = Clock::real().now();
    sequence_ = call.sequence;
    waits_for_.clear();
    for (const auto& [rank, completed] : left_) {
      if (completed < sequence_) gone = rank;
    }
  }
  if (gone >= 0) fail(left_error(gone));
}

void ClusterMember::end_call() {
  MutexLock lock(mutex_);
  call_ = nullptr;
  completed_ = sequence_;
}

GroupPosition ClusterMember::position() const {
  MutexLock lock(mutex_);
  GroupPosition position{.sequence = sequence_, .failure = failure_, .left = left_here_};
  if (call_ == nullptr) return position;
  position.call = describe_call(*call_);
  position.waits = Clock::real().now() - since_;
  position.waits_for = waits_for_;
  return position;
}

void ClusterMember::set_waits_for(uint64_t sequence, const std::string& text) {
  MutexLock lock(mutex_);
  if (sequence == sequence_) waits_for_ = text;
}

void ClusterMember::send(int to, Parcel parcel, std::function<void(const absl::Status&)> done) {
  if (to == rank()) {
    parcel.from = rank();
    parcel.on_taken = std::move(done);
    return mailbox_.deliver(std::move(parcel));
  }
  Gate::Pass pass = sends_.enter();
  if (!pass || stop_.stop_requested()) return done(failure());
  SendParcelRequest request;
  request.set_group_id(id());
  request.set_from(rank());
  request.set_sequence(parcel.sequence);
  request.set_slot(parcel.slot);
  request.set_call_fingerprint(parcel.call_fingerprint);
  request.set_call_description(std::move(parcel.call_description));
  std::vector<at::Tensor> tensors;
  if (parcel.payload.defined()) tensors.push_back(std::move(parcel.payload));
  // Parcels travel on a stream, which costs half as much as a call for each. A call can be larger,
  // and faults are injected into calls only.
  const bool fits = tensors.empty() || tensors[0].nbytes() <= kLargestStreamed;
  if (fits && options_.channels[to]->options().faults == nullptr) {
    auto held = std::make_shared<Gate::Pass>(std::move(pass));  // std::function must be copyable
    return stream_to(to)->send(
        make_message(request, std::move(tensors)),
        [self = shared_from_this(), to, done = std::move(done), held](const absl::Status& status) {
          self->on_sent(to, status, std::move(*held), done);
        });
  }
  options_.channels[to]->call(kSendParcel, make_message(request, std::move(tensors)),
                              {.deadline = after(kSendTime),
                               .incarnation = members()[to].incarnation,
                               .stop = stop_.get_token()},
                              [self = shared_from_this(), to, done = std::move(done),
                               pass = std::move(pass)](const Response& answer) mutable {
                                self->on_sent(to, answer.status(), std::move(pass), done);
                              });
}

std::shared_ptr<MessageStream> ClusterMember::stream_to(int rank) {
  MutexLock lock(mutex_);
  std::shared_ptr<MessageStream>& stream = streams_[rank];
  if (stream == nullptr) {
    stream = options_.channels[rank]->open_stream(kStreamParcels, members()[rank].incarnation,
                                                  stop_.get_token());
  }
  return stream;
}

void ClusterMember::on_sent(int to, const absl::Status& status, Gate::Pass pass,
                            const std::function<void(const absl::Status&)>& done) {
  if (status.ok()) return done(status);
  // Errors that the receiver did not answer with, and those of another start of it. The receiver of
  // a group that has failed answers with the cause.
  const ErrorCode code = error_code(status);
  const bool is_lost = is_retryable(status) || code == ErrorCode::kCancelled ||
                       (code == ErrorCode::kIncarnationChanged &&
                        error_origin(status).task == members()[to].task.to_string());
  // The pass must outlive the wait for the cause; std::function needs a copyable owner.
  when_failed(
      [self = shared_from_this(), done, pass = std::make_shared<Gate::Pass>(std::move(pass))] {
        done(self->failure());
        *pass = Gate::Pass();
      });
  if (is_lost && !has_left(to)) return on_parcel_lost(to, status);
  fail(is_lost ? left_error(to) : status);
}

absl::StatusOr<std::vector<std::string>> ClusterMember::exchange(const std::string& key,
                                                                 const std::string& bytes,
                                                                 Time deadline) {
  TRIREME_RETURN_IF_ERROR(failure());
  const std::string task = members()[rank()].task.to_string();
  absl::StatusOr<GatherAnswer> answer = gather_all(
      {.purpose = absl::StrCat("to exchange '", key, "' in group '", name(), "'"),
       .group = name(),
       .group_id = id(),
       .key = key,
       .entry = {.rank = rank(),
                 .size = static_cast<int>(members().size()),
                 .ticket = 1,
                 .bytes = bytes},
       .task = task,
       .root = options_.channels[0].get(),
       .incarnation = members()[0].incarnation,
       .enter =
           [this, key](GatherEntry entry, GatherTable::Done done) {
             exchanges_->enter(key, std::move(entry), std::move(done));
           },
       .withdraw = [this, key] { exchanges_->withdraw(key, rank(), 1); },
       .name_of = [this](int rank) { return name_of(rank); },
       .note =
           [&](const std::string& missing) {
             options_.host->note_wait(this, missing.empty()
                                                ? ""
                                                : absl::StrCat("exchange '", key, "' of group '",
                                                               name(), "' waits for ", missing));
           },
       .give_up = [this](int rank) { return has_left(rank) ? left_error(rank) : absl::OkStatus(); },
       .deadline = deadline,
       .stop = stop_.get_token()});
  if (answer.ok()) return std::move(answer->gathered);
  TRIREME_RETURN_IF_ERROR(failure());
  return answer.status();
}

void ClusterMember::ask_position(int rank, Time deadline,
                                 std::function<void(const absl::StatusOr<GroupPosition>&)> done) {
  GroupPositionRequest request;
  request.set_group_id(id());
  options_.channels[rank]->call(
      kGroupPosition, make_message(request),
      {.deadline = deadline, .incarnation = members()[rank].incarnation},
      [done = std::move(done)](const Response& answer) { done(to_position(answer)); });
}

void ClusterMember::ask_positions(std::optional<int> except, Duration limit,
                                  std::function<void(const Positions&)> done) {
  struct Asked {
    Mutex mutex;
    Positions positions ABSL_GUARDED_BY(mutex);
    size_t left ABSL_GUARDED_BY(mutex) = 0;
  };
  std::vector<int> ranks;
  for (int other = 0; other < static_cast<int>(members().size()); ++other) {
    if (other != rank() && other != except && !has_left(other)) ranks.push_back(other);
  }
  if (ranks.empty()) return done({});
  auto asked = std::make_shared<Asked>();
  {
    MutexLock lock(asked->mutex);
    asked->left = ranks.size();
  }
  const Time deadline = after(limit);
  for (const int other : ranks) {
    ask_position(other, deadline, [asked, other, done](const auto& position) {
      Positions all;
      {
        MutexLock lock(asked->mutex);
        asked->positions.emplace(other, position);
        if (--asked->left > 0) return;
        all = std::move(asked->positions);
      }
      done(all);
    });
  }
}

void ClusterMember::suspect(int rank, ErrorCode code, const std::string& why) {
  find_cause(rank, [self = shared_from_this(), rank, code, why](const Positions&) {
    self->blame(rank, code, why);
  });
}

void ClusterMember::on_parcel_lost(int to, const absl::Status& status) {
  find_cause(std::nullopt, [self = shared_from_this(), to, status](const Positions& positions) {
    const auto receiver = positions.find(to);
    const ErrorCode code = error_code(status);
    if (receiver == positions.end() || !receiver->second.ok()) {
      return self->blame(to, code, std::string(status.message()));
    }
    if (code == ErrorCode::kCancelled) {  // this server ends its calls when it is stopped
      return self->blame(self->rank(), ErrorCode::kAborted, "its server was stopped");
    }
    self->fail(make_status(code, absl::StrCat("a parcel of ", self->name_of(self->rank()), " to ",
                                              self->name_of(to), " of group '", self->name(),
                                              "' was lost: ", std::string(status.message()))));
  });
}

void ClusterMember::find_cause(std::optional<int> except,
                               std::function<void(const Positions&)> otherwise) {
  if (stop_.stop_requested() || suspecting_.exchange(true)) return;
  ask_positions(
      except, kAskOthersTime,
      [self = shared_from_this(), otherwise = std::move(otherwise)](const Positions& positions) {
        for (const auto& [other, position] : positions) {
          if (position.ok() && !position->left && !position->failure.ok()) {
            return self->adopt_failure(position->failure);
          }
        }
        otherwise(positions);
      });
}

void ClusterMember::blame(int rank, ErrorCode code, const std::string& why) {
  bool has_left, is_needed;
  {
    MutexLock lock(mutex_);
    has_left = left_.contains(rank);
    is_needed = !when_failed_.empty();
  }
  // Its goodbye may have come in the meantime.
  if (has_left && !is_needed) {
    suspecting_ = false;
    return;
  }
  fail(has_left ? left_error(rank) : member_lost(name(), rank, members()[rank], code, why));
}

}  // namespace trireme::internal
