#include "trireme/collective/group_service.h"

#include <atomic>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/collective/collective.pb.h"
#include "trireme/collective/collective_host.h"
#include "trireme/collective/group_failure.h"

// Translates between messages and CollectiveHost. Handlers do not block: a call that waits, for
// other members or until its parcel is taken, is held by a HeldCall.
namespace trireme {
namespace {

using internal::CollectiveHost;
using internal::GatherAnswer;
using internal::GroupPosition;
using internal::HostedGroup;
using internal::Parcel;

// Roles of tasks that train and may be members of a group.
constexpr Roles kGroupMembers = {Role::kChief, Role::kWorker, Role::kEvaluator};

// A call that is answered later. If its caller is gone, or the server stops, it is answered at
// once, because a stop waits for all calls. Thread-safe.
class HeldCall {
 public:
  explicit HeldCall(ServerCall call) : call_(std::move(call)) {}

  // Runs `on_stop` if the call ends without an answer. Called at most once, after construction.
  void watch(std::function<void()> on_stop) {
    on_stop_.emplace(call_.stop_token(), [this, on_stop = std::move(on_stop)] {
      answer(make_status(ErrorCode::kCancelled, "the caller no longer waits for the answer"));
      if (on_stop) on_stop();
    });
  }

  // Answers the call, unless it was answered.
  void answer(absl::StatusOr<Message> response) {
    if (!answered_.exchange(true)) call_.respond(std::move(response));
  }

 private:
  ServerCall call_;
  std::atomic<bool> answered_ = false;
  // Destroyed first: the callback uses the other members.
  std::optional<std::stop_callback<std::function<void()>>> on_stop_;
};

// Returns the certified task of the caller; empty without certificates.
std::string certified_task(const ServerCall& call) {
  return call.peer() ? call.peer()->name : "";
}

// Returns true if the call comes from this member of the group.
bool is_member(const HostedGroup& group, int rank, const ServerCall& call) {
  const auto& members = group.members();
  if (rank < 0 || rank >= static_cast<int>(members.size())) return false;
  if (members[rank].incarnation != call.caller()) return false;
  return !call.peer() || members[rank].task.to_string() == call.peer()->name;
}

// Returns an error unless the bytes with which a caller forms a group describe this caller. The
// members of the group take parcels only from the incarnation in the description.
absl::Status check_seat(const GatherRequest& request, const ServerCall& call) {
  Seat seat;
  if (!seat.ParseFromString(request.bytes())) {
    return invalid_argument(absl::StrCat("the description of ", request.task(), " for group '",
                                         request.group(),
                                         "' cannot be read; all tasks must run the same release"));
  }
  if (seat.task() == request.task() && seat.incarnation() == call.caller()) {
    return absl::OkStatus();
  }
  return make_status(
      ErrorCode::kPermissionDenied,
      absl::StrCat("the caller says that it is ", request.task(), ", but what it gives for group '",
                   request.group(), "' describes another start, or another task: ", seat.task()));
}

Message to_message(const GatherAnswer& answer) {
  GatherResponse response;
  for (const int rank : answer.missing) response.add_missing(rank);
  response.set_group_id(answer.id);
  for (const std::string& bytes : answer.gathered) response.add_gathered(bytes);
  return make_message(response);
}

class CollectiveService final : public Service {
 public:
  explicit CollectiveService(TaskContext& context)
      : host_(std::make_shared<CollectiveHost>()),
        intake_(std::make_shared<ByteBudget>(
            default_receive_bytes(), context.metrics.counter("collective/parcels_held_back"))) {
    context.collectives = host_;
    context.waits = [host = host_] { return host->waits(); };
  }
  ~CollectiveService() override { host_->close(); }

  std::vector<Method> methods() override {
    Method send{internal::kSendParcel, kGroupMembers, Repeats::kHarmless,
                [this](ServerCall call) { send_parcel(std::move(call)); }};
    // The budget is large, because calls of parcels end only when they are taken, and a call of a
    // later collective must not keep out those of the current one.
    send.intake = intake_;
    send.scatters = [](const std::string&) { return true; };
    return {{internal::kGatherMembers, kGroupMembers, Repeats::kHarmless,
             [this](ServerCall call) { gather(std::move(call)); }},
            std::move(send),
            {.name = internal::kStreamParcels,
             .callers = kGroupMembers,
             .repeats = Repeats::kHarmless,
             .handler = nullptr,
             .on_message = [this](StreamMessage message) { take_from_stream(std::move(message)); }},
            {internal::kFailGroup, kGroupMembers, Repeats::kHarmless,
             [this](ServerCall call) { fail(std::move(call)); }},
            {internal::kGroupPosition, kGroupMembers, Repeats::kHarmless,
             [this](ServerCall call) { position(std::move(call)); }}};
  }

 private:
  void gather(ServerCall call) {
    auto request = parse_body<GatherRequest>(call.request());
    if (!request.ok()) return call.respond(request.status());
    if (call.peer() && call.peer()->name != request->task()) {
      return call.respond(
          make_status(ErrorCode::kPermissionDenied,
                      absl::StrCat("the caller says that it is ", request->task(),
                                   ", but its certificate is that of ", call.peer()->name)));
    }
    const std::shared_ptr<HostedGroup> group = host_->find(request->group_id());
    const int rank = static_cast<int>(request->rank());
    if (request->group_id() != 0 && (group == nullptr || !is_member(*group, rank, call))) {
      return call.respond(unknown_group(request->group_id()));
    }
    if (request->group_id() == 0) {
      if (const absl::Status seat = check_seat(*request, call); !seat.ok()) {
        return call.respond(seat);
      }
    }
    const uint64_t incarnation = call.caller(), ticket = request->ticket();
    const std::stop_token stop = call.stop_token();
    auto held = std::make_shared<HeldCall>(std::move(call));
    const auto withdraw = [host = host_, group, rank, ticket, name = request->group(),
                           key = request->key()] {
      group ? group->exchanges().withdraw(key, rank, ticket) : host->withdraw(name, rank, ticket);
    };
    held->watch(withdraw);
    internal::GatherEntry entry{.rank = rank,
                                .size = static_cast<int>(request->size()),
                                .ticket = ticket,
                                .bytes = std::move(*request->mutable_bytes()),
                                .wait = after_milliseconds(request->wait_ms()) - after({})};
    const auto done = [held](const absl::StatusOr<GatherAnswer>& answer) {
      if (!answer.ok()) return held->answer(answer.status());
      held->answer(to_message(*answer));
    };
    if (group != nullptr) {
      group->exchanges().enter(request->key(), std::move(entry), done);
    } else {
      host_->form(request->group(), std::move(entry), request->task(), incarnation, done);
    }
    if (stop.stop_requested()) withdraw();  // it may have stopped before the entry was there
  }

  // Delivers a parcel. `taken` is called once.
  void deliver(Message message, std::vector<ScatteredTensor> scattered, uint64_t caller,
               const std::string& task, std::function<void(const absl::Status&)> taken) {
    auto request = parse_body<SendParcelRequest>(message);
    if (!request.ok()) return taken(request.status());
    if (message.tensors.size() > 1) {
      return taken(invalid_argument("a parcel has at most one tensor"));
    }
    Parcel parcel{.from = static_cast<int>(request->from()),
                  .sequence = request->sequence(),
                  .slot = request->slot(),
                  .call_fingerprint = request->call_fingerprint(),
                  .call_description = std::move(*request->mutable_call_description()),
                  .on_taken = std::move(taken)};
    if (!message.tensors.empty()) {
      parcel.payload = std::move(message.tensors[0]);
      if (!scattered.empty()) parcel.scattered = std::move(scattered[0]);
    }
    host_->deliver(request->group_id(), caller, task, std::move(parcel));
  }

  void send_parcel(ServerCall call) {
    Message message = std::move(call.request());
    std::vector<ScatteredTensor> scattered = std::move(call.scattered());
    const uint64_t caller = call.caller();
    const std::string task = certified_task(call);
    auto held = std::make_shared<HeldCall>(std::move(call));
    held->watch(nullptr);
    deliver(std::move(message), std::move(scattered), caller, task,
            [held = std::move(held)](const absl::Status& taken) {
              // The answer is an empty message.
              held->answer(taken.ok() ? absl::StatusOr<Message>(Message()) : taken);
            });
  }

  void take_from_stream(StreamMessage message) {
    deliver(std::move(message.message), std::move(message.scattered), message.caller,
            message.peer ? message.peer->name : "", std::move(message.taken));
  }

  void fail(ServerCall call) {
    const auto request = parse_body<FailGroupRequest>(call.request());
    if (!request.ok()) return call.respond(request.status());
    const std::shared_ptr<HostedGroup> group = host_->find(request->group_id());
    const int from = static_cast<int>(request->from());
    if (group != nullptr && !is_member(*group, from, call)) {
      return call.respond(unknown_group(request->group_id()));
    }
    if (group != nullptr && request->has_failure()) {
      group->adopt_failure(internal::to_failure(request->failure()));
    } else if (group != nullptr) {
      group->member_left(from, request->completed());
    }
    call.respond(Message());  // nothing is left to do for a group that has ended
  }

  void position(ServerCall call) {
    const auto request = parse_body<GroupPositionRequest>(call.request());
    if (!request.ok()) return call.respond(request.status());
    GroupPositionResponse response;
    if (const auto position = host_->position(request->group_id()); position.ok()) {
      response.set_known(true);
      response.set_sequence(position->sequence);
      response.set_call(position->call);
      response.set_waits_ms(
          std::chrono::duration_cast<std::chrono::milliseconds>(position->waits).count());
      response.set_waits_for(position->waits_for);
      if (!position->failure.ok() && !position->left) {
        internal::set_failure(position->failure, *response.mutable_failure());
      }
      response.set_left(position->left);
    }
    call.respond(make_message(response));
  }

  // Returns the error for a call of a group that has ended here, or of which the caller is not a
  // member.
  absl::Status unknown_group(uint64_t id) const {
    const auto last = host_->position(id);
    if (last.ok() && !last->failure.ok()) return last->failure;
    if (host_->forming()) {  // The caller asks again.
      return make_status(ErrorCode::kUnavailable, "this task has not joined the group yet");
    }
    return make_status(ErrorCode::kNotFound, "the caller is not a member of a group of this task");
  }

  const std::shared_ptr<CollectiveHost> host_;
  const std::shared_ptr<ByteBudget> intake_;
};

}  // namespace

std::unique_ptr<Service> make_collective_service(TaskContext& context) {
  return std::make_unique<CollectiveService>(context);
}

}  // namespace trireme
