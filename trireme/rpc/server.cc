#include "trireme/rpc/server.h"

#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/executor.h"
#include "trireme/base/ids.h"
#include "trireme/base/logging.h"
#include "trireme/base/version.h"
#include "trireme/rpc/blocking_work.h"
#include "trireme/rpc/call_queue.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/hello.pb.h"
#include "trireme/rpc/incoming_call.h"
#include "trireme/rpc/incoming_stream.h"
#include "trireme/rpc/port_listener.h"
#include "trireme/rpc/shared_segment.h"

// Each thread of a server polls a completion queue of its own. A call is accepted on one queue, and
// all its events come there, so a call needs no lock (incoming_call.h). Each queue also has a
// CallWatch, which cancels calls whose callers have stalled.
//
// A stop goes from the callers inwards, in an order that keeps everything alive that an event may
// still use:
//
// 1. The gate `serving` closes: new calls are rejected, and the calls in flight may end until the
//    deadline.
// 2. The port is closed, and gRPC's server shuts down. That cancels the calls that are
//    left and ends the pending accepts.
// 3. The gate `alive` closes, and waits until the last IncomingCall is gone. A handler that does
//    not react to its stop token delays the stop here, and the log says so.
// 4. Calls of our own that end on the server's queues are cancelled (ServingQueues). The threads
//    must still run for that.
// 5. Watches end, queues shut down, and the threads drain them and return.
namespace trireme {
namespace {

// Accepts that are pending on each queue. Each is replaced when a call arrives for it.
constexpr int kAcceptsPerQueue = 32;
// Time in which the process that holds our address must answer a hello.
constexpr auto kAskHolder = std::chrono::milliseconds(500);
// Largest segment that a hello opens. Callers send a segment of one byte, and mapping more takes
// time on a thread that serves other calls.
constexpr uint64_t kMostProbeBytes = 4096;
// Longest period of a CallWatch.
constexpr auto kLongestWatch = std::chrono::seconds(1);
// Interval of log lines while a stop waits for calls.
constexpr auto kComplainAfter = std::chrono::seconds(5);

// Tells callers which task and incarnation the server is, and rejects callers that mean another
// task.
class HelloService final : public Service {
 public:
  explicit HelloService(const RpcServerOptions& options)
      : task_(options.task),
        incarnation_(options.incarnation),
        shared_bytes_(options.limits.shared_bytes) {}

  std::vector<Method> methods() override {
    return {{kHelloMethod, Roles::all(), Repeats::kHarmless, [this](ServerCall call) {
               const auto request = parse_body<HelloRequest>(call.request());
               if (!request.ok()) return call.respond(request.status());
               const auto response = hello(*request, call.peer());
               if (!response.ok()) return call.respond(response.status());
               call.respond(make_message(*response));
             }}};
  }

 private:
  absl::StatusOr<HelloResponse> hello(const HelloRequest& request,
                                      const std::optional<Peer>& peer) const {
    if (peer && !request.task().empty() && request.task() != peer->name) {
      return make_status(ErrorCode::kPermissionDenied,
                         absl::StrCat("the caller says that it is ", request.task(),
                                      ", but its certificate is that of ", peer->name));
    }
    if (!request.expected_task().empty() && request.expected_task() != task_) {
      return make_status(
          ErrorCode::kFailedPrecondition,
          absl::StrCat("the call was meant for ", request.expected_task(), ", but this address is ",
                       task_, "; do both sides use the same cluster spec?"));
    }
    HelloResponse response;
    response.set_protocol_version(kProtocolVersion);
    response.set_release(version());
    response.set_task(task_);
    response.set_incarnation(incarnation_);
    response.set_pid(getpid());
    if (!request.shared_segment().empty() && shared_bytes_ > 0) {
      const auto opened = SharedSegment::open(request.shared_segment(), kMostProbeBytes);
      response.set_shares_memory(opened.ok());
      // Callers on other machines need no reason.
      if (!opened.ok() && absl::StrContains(request.shared_segment(), boot_id())) {
        response.set_cannot_share(std::string(opened.status().message()));
      }
    }
    return response;
  }

  const std::string task_;
  const uint64_t incarnation_;
  const uint64_t shared_bytes_;
};

int milliseconds_of(Duration duration) {
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

std::string host_of(const std::string& address) {
  return address.substr(0, address.rfind(':'));
}

// Returns why this machine can never listen on the address, or "" if the address is merely taken.
std::string permanent_bind_error(const std::string& address) {
  std::string host = host_of(address);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const std::string port = address.substr(address.rfind(':') + 1);
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) {
    return "this host name cannot be resolved on this machine";
  }
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const int error = bind(fd, found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
  freeaddrinfo(found);
  close(fd);
  if (error == EADDRNOTAVAIL) {
    return "this machine does not have this address. Run the task on the machine that has it, or "
           "give the address to bind with --bind";
  }
  return error == 0 || error == EADDRINUSE ? "" : std::strerror(error);
}

// Fails if this machine can never listen on the server's address.
absl::Status check_own_address(const RpcServerOptions& options) {
  const std::string reason = permanent_bind_error(options.address);
  if (reason.empty()) return absl::OkStatus();
  return make_status(
      ErrorCode::kFailedPrecondition,
      absl::StrCat(options.task, " cannot listen on ", options.address, ": ", reason),
      {options.task, ""});
}

// Returns the error for an address that could not be bound. If a Trireme server holds the address,
// the error names its task, found by a hello.
absl::Status cannot_listen(const RpcServerOptions& options, const absl::Status& why) {
  TRIREME_RETURN_IF_ERROR(check_own_address(options));
  if (error_code(why) != ErrorCode::kAlreadyExists) {
    return make_status(error_code(why),
                       absl::StrCat(options.task, " cannot listen on ", options.address, ": ",
                                    std::string(why.message())),
                       {options.task, ""});
  }
  std::string holder = "another process, which is not a Trireme server";
  Channel channel({.address = options.address, .credentials = options.credentials});
  if (const auto hello = channel.hello(after(kAskHolder)); hello.ok()) {
    holder = absl::StrCat(hello->task, " (pid ", hello->pid, ", incarnation ",
                          format_incarnation(hello->incarnation), ")");
  }
  return make_status(
      ErrorCode::kAlreadyExists,
      absl::StrCat(options.task, " cannot listen on ", options.address, ": the address is held by ",
                   holder, ". Stop that process, or give one of the two another address"),
      {options.task, ""});
}

internal::MethodStats stats_for(Metrics* metrics, const std::string& method) {
  if (metrics == nullptr) return {};
  const std::string name = absl::StrCat("rpc_server", method);
  return {&metrics->counter(absl::StrCat(name, "/calls")),
          &metrics->counter(absl::StrCat(name, "/errors")),
          &metrics->counter(absl::StrCat(name, "/bytes_in")),
          &metrics->counter(absl::StrCat(name, "/bytes_out")),
          &metrics->histogram(absl::StrCat(name, "/latency_us"))};
}

}  // namespace

class RpcServer::Impl {
 public:
  Impl(RpcServerOptions options, std::vector<std::unique_ptr<Service>> services)
      : services_(std::move(services)), shared_(std::move(options)) {
    services_.push_back(std::make_unique<HelloService>(shared_.options));
    for (const auto& service : services_) {
      for (Method& method : service->methods()) add(std::move(method), shared_.options.metrics);
    }
  }

  ~Impl() { stop(std::chrono::steady_clock::now()); }

  absl::Status start() {
    const RpcServerOptions& options = shared_.options;
    TRIREME_RETURN_IF_ERROR(methods_status_);
    if (const absl::Status refused = options.credentials.check_bind(options.address);
        !refused.ok()) {
      // If the address belongs to another machine, that is the error to report first.
      TRIREME_RETURN_IF_ERROR(check_own_address(options));
      return with_origin(refused, {options.task, ""});
    }
    internal::prepare_grpc();
    auto listener = internal::PortListener::bind(
        {.address = options.address,
         .on_connection = [this](internal::Socket socket) { serve(std::move(socket)); },
         .lanes = options.lanes,
         .silence_limit = options.limits.ping_timeout});
    if (!listener.ok()) return cannot_listen(options, listener.status());
    listener_ = *std::move(listener);
    grpc::ServerBuilder builder;
    using Connections = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        Connections::FROM_FD, options.credentials.for_server());
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    const ServerLimits& limits = options.limits;
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.connection_calls);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                               milliseconds_of(limits.handshake_time));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, milliseconds_of(limits.ping_after));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, milliseconds_of(limits.ping_timeout));
    builder.SetResourceQuota(grpc::ResourceQuota(options.task).Resize(limits.unread_bytes));
    builder.SetMaxReceiveMessageSize(kMaxFrameBytes);
    builder.SetMaxSendMessageSize(-1);
    builder.RegisterAsyncGenericService(&shared_.grpc_service);
    for (int i = 0; i < options.threads; ++i) queues_.push_back(builder.AddCompletionQueue());
    server_ = builder.BuildAndStart();
    if (!server_) {
      shut_down_queues();
      return make_status(ErrorCode::kInternal, absl::StrCat(options.task, ": gRPC did not start"));
    }
    address_ = absl::StrCat(host_of(options.address), ":", listener_->port());
    if (options.serving != nullptr) {
      std::vector<grpc::CompletionQueue*> queues;
      for (auto& queue : queues_) queues.push_back(queue.get());
      options.serving->open(queues);
    }
    for (auto& queue : queues_) {
      watches_.push_back(std::make_unique<internal::CallWatch>(
          queue.get(), std::min<Duration>(limits.transfer_time / 4, kLongestWatch)));
      for (int i = 0; i < kAcceptsPerQueue; ++i)
        internal::IncomingCall::accept(shared_, watches_.back().get());
      watches_.back()->begin();
      threads_.emplace_back([queue = queue.get(), serving = options.serving.get()] {
        if (serving != nullptr) serving->serve_on_this_thread(queue);
        run(queue);
      });
    }
    listener_->start();
    return absl::OkStatus();
  }

  void stop(Time deadline) {
    MutexLock lock(stop_mutex_);
    if (!server_) return;
    shared_.serving.close(deadline);
    listener_.reset();
    server_->Shutdown(std::chrono::system_clock::now());  // cancels the calls that are left
    // The stop tokens of handlers have stopped now. Queues must live until the last has answered.
    while (!shared_.alive.close(after(kComplainAfter))) {
      log_warning(shared_.options.task, ": still waiting for ", shared_.serving.inside(),
                  " cancelled call(s) whose handlers have not answered");
    }
    if (shared_.options.serving != nullptr) shared_.options.serving->close();
    for (auto& watch : watches_) watch->end();
    shut_down_queues();
    for (std::thread& thread : threads_) thread.join();
    server_.reset();
  }

  const std::string& address() const { return address_; }

  std::map<std::string, Roles> method_table() const {
    std::map<std::string, Roles> table;
    for (const auto& [name, method] : shared_.methods) table.emplace(name, method.callers);
    return table;
  }

 private:
  void add(Method method, Metrics* metrics) {
    const bool nobody = method.callers.empty();
    const auto stats = stats_for(metrics, method.name);
    std::function<void(std::shared_ptr<internal::IncomingCall>)> serve_stream;
    if (method.on_message) {
      serve_stream = [handler = std::move(method.on_message)](auto call) {
        internal::IncomingStream::start(std::move(call), handler);
      };
    }
    const bool added = shared_.methods
                           .emplace(method.name,
                                    internal::RegisteredMethod{
                                        method.callers, method.repeats, std::move(method.handler),
                                        std::move(method.intake), std::move(method.scatters),
                                        std::move(method.shares), std::move(serve_stream), stats})
                           .second;
    if (added && !nobody) return;
    methods_status_.Update(
        make_status(ErrorCode::kInternal,
                    absl::StrCat("a service offers ", method.name,
                                 nobody ? " to no role" : ", which another service offers too")));
  }

  // Passes a connection to gRPC.
  void serve(internal::Socket socket) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = socket.release();
    acceptor_->HandleNewConnection(&connection);
  }

  // Dispatches the events of a queue until it is shut down and empty.
  static void run(grpc::ServerCompletionQueue* queue) {
    set_thread_name("trireme-rpc");
    internal::declare_serving_thread();
    void* tag = nullptr;
    bool ok = false;
    while (queue->Next(&tag, &ok)) internal::Tag::dispatch(tag, ok);
  }

  void shut_down_queues() {
    for (auto& queue : queues_) {
      queue->Shutdown();
      if (!threads_.empty()) continue;  // the queue's thread drains it
      void* tag = nullptr;
      bool ok = false;
      while (queue->Next(&tag, &ok)) internal::Tag::dispatch(tag, ok);
    }
  }

  std::vector<std::unique_ptr<Service>> services_;
  internal::ServerCallContext shared_;
  absl::Status methods_status_;  // first error of a registered method, reported by start()
  std::string address_;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  std::vector<std::unique_ptr<internal::CallWatch>> watches_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<internal::PortListener> listener_;  // null once the server stops
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::thread> threads_;
  Mutex stop_mutex_;  // serializes calls of stop()
};

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::start(
    RpcServerOptions options, std::vector<std::unique_ptr<Service>> services) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(services));
  TRIREME_RETURN_IF_ERROR(impl->start());
  return std::unique_ptr<RpcServer>(new RpcServer(std::move(impl)));
}

RpcServer::RpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RpcServer::~RpcServer() = default;

const std::string& RpcServer::address() const {
  return impl_->address();
}

std::map<std::string, Roles> RpcServer::method_table() const {
  return impl_->method_table();
}

void RpcServer::stop(Time deadline) {
  impl_->stop(deadline);
}

}  // namespace trireme
