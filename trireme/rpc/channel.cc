#include "trireme/rpc/channel.h"

#include <grpcpp/create_channel.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/logging.h"
#include "trireme/base/version.h"
#include "trireme/rpc/call_and_wait.h"
#include "trireme/rpc/call_queue.h"
#include "trireme/rpc/completion_loop.h"
#include "trireme/rpc/fault_injector.h"
#include "trireme/rpc/faulty_call.h"
#include "trireme/rpc/hello.pb.h"
#include "trireme/rpc/message_stream.h"
#include "trireme/rpc/outgoing_call.h"
#include "trireme/rpc/retrying_call.h"
#include "trireme/rpc/shared_region.h"

// A call takes one of three paths:
//
// - An asynchronous call without retries and faults starts an OutgoingCall on a queue of the
//   calling server or of a CompletionLoop.
// - A blocking call starts it on a queue that belongs to the calling thread, and polls that queue
//   itself (call_in_place). This saves waking another thread. With a retry policy the first attempt
//   is made in this way.
// - All others are layers of callbacks around OutgoingCall (call_with_retries_or_faults). If there
//   is a retry policy, a RetryingCall makes attempts. If there is a FaultInjector, each attempt
//   passes through a FaultyCall. Blocking calls with large answers may come here too.
//
// All attempts of a call carry the same request id, by which a server recognizes a repetition. Only
// the first one may use shared memory (shared_message.h).
namespace trireme {
namespace {

// Returns the identity under which this process calls if it is not a server.
uint64_t process_incarnation() {
  static const uint64_t incarnation = new_incarnation();
  return incarnation;
}

uint64_t next_request_id() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

// Spreads channels over the completion loops.
unsigned next_home() {
  static std::atomic<unsigned> last = 0;
  return last++;
}

std::shared_ptr<grpc::Channel> make_grpc_channel(const ChannelOptions& options) {
  internal::prepare_grpc();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Each channel has a connection of its own, which ends with it. By default gRPC shares one among
  // channels to the same address, and with it the connection's flow-control window.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A restarted task is found again soon. By default gRPC backs off up to two minutes.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Despite its name this is the time limit of one attempt, including the handshake. When a
  // thousand peers connect at once, their handshakes queue up at the server. With a short limit
  // many would give up, and the work on their handshakes would be lost.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  arguments.SetMaxReceiveMessageSize(kMaxFrameBytes);
  arguments.SetMaxSendMessageSize(-1);
  return grpc::CreateCustomChannel(options.address, options.credentials.for_channel(options.task),
                                   arguments);
}

}  // namespace

struct Channel::State : std::enable_shared_from_this<State> {
  ChannelOptions options;
  internal::Target target;
  std::atomic<uint64_t> incarnation = 0;
  const unsigned home = next_home();  // selects the queue on which its calls complete

  // Returns the queue for an asynchronous call; nullopt once the process ends.
  std::optional<internal::CallQueue> queue() const {
    if (options.serving != nullptr) {
      if (auto serving = options.serving->take(home)) return serving;
    }
    return internal::CompletionLoop::take(home);
  }
  // Starts an asynchronous call.
  void start(const std::string& method, const Prefix& prefix, Message request,
             const CallOptions& call, OnResponse on_response) const {
    auto chosen = queue();
    if (!chosen) return on_response(process_ends());
    internal::OutgoingCall::start(target, method, prefix, std::move(request), call,
                                  *std::move(chosen), std::move(on_response));
  }
  static absl::Status process_ends() {
    return make_status(ErrorCode::kCancelled, "the process of the caller ends");
  }

  Prefix prefix(const std::string& method, const CallOptions& call) const {
    // A hello is meant for any incarnation.
    const uint64_t known = method == kHelloMethod ? 0 : incarnation.load();
    return {.request_id = next_request_id(),
            .sender = options.caller,
            .receiver = call.incarnation != 0 ? call.incarnation : known};
  }

  void call_with_retries_or_faults(const std::string& method, Message request, const Prefix& prefix,
                                   const CallOptions& options, OnResponse on_response);
  Response call_in_place(const std::string& method, Message request, const Prefix& prefix,
                         const CallOptions& options);
};

Channel::Channel(ChannelOptions options) : state_(std::make_shared<State>()) {
  if (options.caller == 0) options.caller = process_incarnation();
  state_->target = {std::make_shared<grpc::GenericStub>(make_grpc_channel(options)),
                    options.task,
                    options.address,
                    options.limits,
                    options.credentials.is_secure(),
                    std::make_shared<std::atomic<bool>>(false)};
  state_->options = std::move(options);
}

Channel::~Channel() = default;

Message internal::hello_request(const ChannelOptions& options) {
  HelloRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.set_release(version());
  request.set_task(options.caller_task);
  request.set_expected_task(options.task);
  if (options.shared_memory) request.set_shared_segment(shared_probe());
  return make_message(request);
}

absl::StatusOr<Hello> internal::read_hello(const absl::StatusOr<Message>& answer) {
  if (!answer.ok()) return answer.status();
  TRIREME_ASSIGN_OR_RETURN(const HelloResponse response, parse_body<HelloResponse>(*answer));
  return Hello{response.task(), response.incarnation(),   response.release(),
               response.pid(),  response.shares_memory(), response.cannot_share()};
}

absl::StatusOr<Hello> Channel::hello(Time deadline) {
  TRIREME_ASSIGN_OR_RETURN(
      const Hello hello,
      internal::read_hello(
          call(kHelloMethod, internal::hello_request(state_->options), {.deadline = deadline})));
  remember(hello);
  return hello;
}

void Channel::remember(const Hello& hello) {
  state_->incarnation = hello.incarnation;
  if (!state_->options.shared_memory) return;
  *state_->target.shares_memory = hello.shares_memory;
  if (hello.cannot_share.empty()) return;
  log_info(hello.task, " is on this machine, but tensors do not go there through shared memory: ",
           hello.cannot_share);
}

// An injected cut uses the call's stop token, so it has no effect on calls that have their own.
void Channel::State::call_with_retries_or_faults(const std::string& method, Message request,
                                                 const Prefix& prefix, const CallOptions& options,
                                                 OnResponse on_response) {
  auto shared = std::make_shared<const Message>(std::move(request));
  auto sends = std::make_shared<std::atomic<int>>(0);
  internal::Attempt attempt = [self = shared_from_this(), method, shared, sends, options, prefix](
                                  Time first_frame_deadline, OnResponse done) {
    internal::Send send = [=](std::stop_token cut, OnResponse then) {
      CallOptions once = options;
      once.first_frame_deadline = first_frame_deadline;
      if (sends->fetch_add(1) > 0) once.shared = {};
      if (!once.stop.stop_possible()) once.stop = cut;
      self->start(method, prefix, *shared, once, std::move(then));
    };
    const auto& faults = self->options.faults;
    const Fault fault = faults ? faults->decide(method, self->options.task) : Fault();
    if (!faults) return send({}, std::move(done));
    internal::send_with_fault(faults, fault, std::min(first_frame_deadline, options.deadline),
                              std::move(send), std::move(done));
  };
  if (options.retry) {
    internal::call_with_retries(options, std::move(attempt), std::move(on_response));
  } else {
    attempt(options.deadline, std::move(on_response));
  }
}

void Channel::call(const std::string& method, Message request, const CallOptions& options,
                   OnResponse on_response) {
  if (options.retry || state_->options.faults) {
    return state_->call_with_retries_or_faults(method, std::move(request),
                                               state_->prefix(method, options), options,
                                               std::move(on_response));
  }
  state_->start(method, state_->prefix(method, options), std::move(request), options,
                std::move(on_response));
}

// The calling thread polls for the events of the call.
Response Channel::State::call_in_place(const std::string& method, Message request,
                                       const Prefix& prefix, const CallOptions& options) {
  grpc::CompletionQueue& queue = internal::CompletionLoop::of_this_thread();
  std::optional<Response> result;
  internal::OutgoingCall::start(target, method, prefix, std::move(request), options,
                                {&queue, {}, {}},
                                [&result](Response response) { result = std::move(response); });
  while (!result) internal::CompletionLoop::run_one(queue);
  return *std::move(result);
}

Response Channel::call(const std::string& method, Message request, const CallOptions& options) {
  const Prefix prefix = state_->prefix(method, options);
  CallOptions later = options;  // options of attempts that are not the first
  // gRPC lets one thread at a time poll for the whole process. Once there is a CompletionLoop, its
  // thread polls, and it would hand each frame of the answer over to this thread, which costs a
  // large answer a third of its speed. So such a call completes on the loop. With TLS the hand-over
  // pays: one thread decrypts while the other copies.
  const bool on_loop =
      options.large_response && !state_->target.secure && internal::CompletionLoop::any();
  if (!state_->options.faults && !on_loop) {
    if (!options.retry) {
      return state_->call_in_place(method, std::move(request), prefix, options);
    }
    // Most calls need one attempt only, so the first is made in place.
    CallOptions once = options;
    once.first_frame_deadline = after(options.retry->attempt_time);
    Response response = state_->call_in_place(method, request, prefix, once);
    if (response.ok() || !internal::is_retryable(response.status()) ||
        options.stop.stop_requested() || Clock::real().now() >= options.deadline) {
      return response;
    }
    later.shared = {};
  }
  return call_and_wait<Response>([&](OnResponse done) {
    state_->call_with_retries_or_faults(method, std::move(request), prefix, later, std::move(done));
  });
}

std::shared_ptr<internal::MessageStream> Channel::open_stream(const std::string& method,
                                                              uint64_t incarnation,
                                                              std::stop_token stop) {
  const Prefix prefix = state_->prefix(method, {.incarnation = incarnation});
  auto queue = state_->queue();
  if (!queue) return internal::MessageStream::ended(state_->target, method, State::process_ends());
  return internal::MessageStream::open(state_->target, method, prefix, *std::move(queue),
                                       std::move(stop));
}

const ChannelOptions& Channel::options() const {
  return state_->options;
}

const std::string& Channel::task() const {
  return state_->options.task;
}

const std::string& Channel::address() const {
  return state_->options.address;
}

uint64_t Channel::incarnation() const {
  return state_->incarnation;
}

bool Channel::shares_memory() const {
  return *state_->target.shares_memory;
}

}  // namespace trireme
