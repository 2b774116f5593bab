#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>
#include <latch>
#include <optional>
#include <thread>

#include "trireme/base/executor.h"
#include "trireme/base/ids.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/grpc_bridge.h"
#include "trireme/rpc/server.h"
#include "trireme/testing/raw_call.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::StartsWith;

constexpr uint64_t kIncarnation = 0x1234;
constexpr char kTask[] = "/job:ps/task:1";

class Methods final : public Service {
 public:
  explicit Methods(std::vector<Method> methods) : methods_(std::move(methods)) {}
  std::vector<Method> methods() override { return methods_; }

 private:
  std::vector<Method> methods_;
};

std::unique_ptr<RpcServer> start_server(std::vector<Method> methods,
                                        RpcServerOptions options = {}) {
  if (options.address.empty()) options.address = "127.0.0.1:0";
  options.task = kTask;
  options.incarnation = kIncarnation;
  std::vector<std::unique_ptr<Service>> services;
  services.push_back(std::make_unique<Methods>(std::move(methods)));
  return value_or_throw(RpcServer::start(std::move(options), std::move(services)));
}

const Method kEcho = {"/test.Test/Echo", Roles::all(), Repeats::kHarmless,
                      [](ServerCall call) { call.respond(std::move(call.request())); }};

CallOptions within(Duration timeout) {
  return {.deadline = after(timeout)};
}

TEST(Rpc, CarriesBodyAndTensorsBothWays) {
  auto server = start_server({kEcho});
  Channel channel({.address = server->address(), .task = kTask});
  const at::Tensor x = at::rand({3, 5}), y = at::arange(7), z = at::empty({0, 2});
  const Message answer = value_or_throw(channel.call(kEcho.name, {"body", {x, y, z}}));
  EXPECT_EQ(answer.body, "body");
  ASSERT_EQ(answer.tensors.size(), 3u);
  EXPECT_TRUE(at::equal(answer.tensors[0], x));
  EXPECT_TRUE(at::equal(answer.tensors[1], y));
  EXPECT_EQ(answer.tensors[2].sizes(), z.sizes());
  EXPECT_TRUE(value_or_throw(channel.call(kEcho.name, {})).tensors.empty());
}

TEST(Rpc, StreamsMessagesLargerThanAFrame) {
  auto server = start_server({kEcho});
  Channel channel({.address = server->address(), .task = kTask});
  for (int64_t bytes :
       {kFrameBytes - 1, kFrameBytes, kFrameBytes + 1, 5 * kFrameBytes + 17, 40 * kFrameBytes}) {
    const at::Tensor x = at::randint(0, 256, {bytes}, at::kByte);
    const at::Tensor small = at::rand({3});
    CallOptions options = within(seconds(60));
    options.large_response = true;
    const Message answer =
        value_or_throw(channel.call(kEcho.name, {"b", {small, x, small}}, options));
    ASSERT_EQ(answer.tensors.size(), 3u);
    EXPECT_TRUE(at::equal(answer.tensors[1], x)) << bytes;
    EXPECT_TRUE(at::equal(answer.tensors[2], small)) << bytes;
  }
}

TEST(Rpc, CarriesManySmallTensors) {
  auto server = start_server({kEcho});
  Channel channel({.address = server->address(), .task = kTask});
  const at::Tensor all = at::rand({10000, 64});
  CallOptions options = within(seconds(60));
  options.large_response = true;
  const Message answer = value_or_throw(channel.call(kEcho.name, {"", all.unbind()}, options));
  EXPECT_TRUE(at::equal(at::stack(answer.tensors), all));
}

TEST(Rpc, BodyMaySpanFrames) {
  auto server = start_server({kEcho});
  Channel channel({.address = server->address(), .task = kTask});
  CallOptions options = within(seconds(60));
  options.large_response = true;
  const std::string body(10 << 20, 'b');
  EXPECT_EQ(value_or_throw(channel.call(kEcho.name, {body, {}}, options)).body, body);
}

TEST(Rpc, AUnaryCallWithALargeAnswerFails) {
  auto server =
      start_server({{"/test.Test/Big", Roles::all(), Repeats::kHarmless, [](ServerCall call) {
                       call.respond(Message{"", {at::zeros({8 << 20}, at::kByte)}});
                     }}});
  Channel channel({.address = server->address(), .task = kTask});
  const absl::Status status = channel.call("/test.Test/Big", {}, within(seconds(10))).status();
  EXPECT_EQ(error_code(status), ErrorCode::kResourceExhausted);
  EXPECT_THAT(describe(status), HasSubstr("the caller takes one frame of at most 4194304"));
}

TEST(Rpc, AsynchronousCallsCallBackOnce) {
  auto server = start_server({kEcho});
  Channel channel({.address = server->address(), .task = kTask});
  constexpr int kCalls = 500;
  std::latch left(kCalls);
  std::atomic<int> right = 0;
  for (int i = 0; i < kCalls; ++i) {
    channel.call(kEcho.name, {std::to_string(i), {}}, {}, [&, i](Response response) {
      if (response.ok() && response->body == std::to_string(i)) ++right;
      left.count_down();
    });
  }
  left.wait();
  EXPECT_EQ(right, kCalls);
}

TEST(Rpc, ErrorsKeepTheirCodeAndOrigin) {
  auto server = start_server(
      {{"/test.Test/Fail", Roles::all(), Repeats::kHarmless, [](ServerCall call) {
          call.respond(make_status(ErrorCode::kNotFound, "no such thing", {"", "variable 'w'"}));
        }}});
  Channel channel({.address = server->address(), .task = kTask});
  const absl::Status status = channel.call("/test.Test/Fail", {}).status();
  EXPECT_EQ(error_code(status), ErrorCode::kNotFound);
  EXPECT_EQ(error_origin(status), (Origin{kTask, "variable 'w'"}));
  EXPECT_EQ(describe(status), "/job:ps/task:1: variable 'w': no such thing");
}

TEST(Rpc, UnknownMethodIsNamed) {
  auto server = start_server({});
  Channel channel({.address = server->address(), .task = kTask});
  EXPECT_EQ(describe(channel.call("/test.Test/Nothing", {}).status()),
            "/job:ps/task:1: this server does not offer /test.Test/Nothing");
}

TEST(Rpc, CallsAreAnsweredIfTheHandlerDropsThemOrThrows) {
  auto server =
      start_server({{"/test.Test/Drop", Roles::all(), Repeats::kHarmless, [](ServerCall) {}},
                    {"/test.Test/Throw", Roles::all(), Repeats::kHarmless,
                     [](ServerCall) { throw std::runtime_error("boom"); }}});
  Channel channel({.address = server->address(), .task = kTask});
  for (const char* method : {"/test.Test/Drop", "/test.Test/Throw"}) {
    const absl::Status status = channel.call(method, {}, within(seconds(10))).status();
    EXPECT_EQ(error_code(status), ErrorCode::kInternal) << method;
  }
}

TEST(Rpc, UnreachableTaskIsNamedWithItsAddress) {
  std::string address;
  {
    auto server = start_server({});
    address = server->address();
  }
  Channel channel({.address = address, .task = kTask});
  const absl::Status status = channel.call(kEcho.name, {}, within(seconds(10))).status();
  EXPECT_EQ(error_code(status), ErrorCode::kTaskUnreachable);
  EXPECT_THAT(describe(status),
              StartsWith("/job:ps/task:1: cannot reach /job:ps/task:1 at " + address));
}

// Holds a call until the test answers it, and reports when its stop token stops.
struct Holder {
  Method method() {
    return {"/test.Test/Hold", Roles::all(), Repeats::kHarmless, [this](ServerCall call) {
              std::stop_token stop = call.stop_token();
              on_stop.emplace(stop, std::function<void()>([this] { stopped.set_value(); }));
              held.emplace(std::move(call));
              arrived.set_value();
            }};
  }
  std::promise<void> arrived, stopped;
  std::optional<ServerCall> held;
  std::optional<std::stop_callback<std::function<void()>>> on_stop;
};

TEST(Rpc, DeadlineEndsTheCallOnBothSides) {
  Holder holder;
  auto server = start_server({holder.method()});
  Channel channel({.address = server->address(), .task = kTask});
  const absl::Status status =
      channel.call("/test.Test/Hold", {}, within(milliseconds(200))).status();
  EXPECT_EQ(error_code(status), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(describe(status), HasSubstr("no answer from /job:ps/task:1 at"));
  EXPECT_EQ(holder.stopped.get_future().wait_for(seconds(10)), std::future_status::ready);
  holder.held.reset();
}

TEST(Rpc, CancellationReachesTheServer) {
  Holder holder;
  auto server = start_server({holder.method()});
  Channel channel({.address = server->address(), .task = kTask});
  std::stop_source stop;
  CallOptions options = within(seconds(60));
  options.stop = stop.get_token();
  std::promise<Response> answer;
  channel.call("/test.Test/Hold", {}, options,
               [&](Response response) { answer.set_value(std::move(response)); });
  ASSERT_EQ(holder.arrived.get_future().wait_for(seconds(10)), std::future_status::ready);
  stop.request_stop();
  EXPECT_EQ(error_code(answer.get_future().get().status()), ErrorCode::kCancelled);
  EXPECT_EQ(holder.stopped.get_future().wait_for(seconds(10)), std::future_status::ready);
  holder.held.reset();
}

TEST(Rpc, HelloIdentifiesTheServerAndRejectsAnotherTask) {
  auto server = start_server({});
  Channel channel({.address = server->address(), .task = kTask});
  const Hello hello = value_or_throw(channel.hello(after(seconds(10))));
  EXPECT_EQ(hello.task, kTask);
  EXPECT_EQ(hello.incarnation, kIncarnation);
  EXPECT_EQ(hello.pid, getpid());
  EXPECT_EQ(channel.incarnation(), kIncarnation);

  Channel wrong({.address = server->address(), .task = "/job:worker/task:0"});
  const absl::Status status = wrong.hello(after(seconds(10))).status();
  EXPECT_EQ(error_code(status), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(describe(status),
              HasSubstr("meant for /job:worker/task:0, but this address is /job:ps/task:1"));
}

TEST(Rpc, ARestartedTaskRejectsCallsForItsOldIncarnation) {
  auto server = start_server({kEcho});
  const std::string address = server->address();
  Channel channel({.address = address, .task = kTask});
  throw_if_error(channel.hello(after(seconds(10))).status());
  server.reset();
  std::vector<std::unique_ptr<Service>> services;
  services.push_back(std::make_unique<Methods>(std::vector<Method>{kEcho}));
  server = value_or_throw(RpcServer::start(
      {.address = address, .task = kTask, .incarnation = kIncarnation + 1}, std::move(services)));
  CallOptions options = within(seconds(20));
  options.wait_for_ready = true;
  const absl::Status status = channel.call(kEcho.name, {}, options).status();
  EXPECT_EQ(error_code(status), ErrorCode::kIncarnationChanged);
  EXPECT_EQ(value_or_throw(channel.hello(after(seconds(10)))).incarnation, kIncarnation + 1);
  EXPECT_TRUE(channel.call(kEcho.name, {}).ok());
}

TEST(Rpc, WaitsForAServerThatStartsLater) {
  std::string address;
  {
    auto server = start_server({});
    address = server->address();
  }
  Channel channel({.address = address, .task = kTask});
  std::promise<Response> answer;
  CallOptions options = within(seconds(30));
  options.wait_for_ready = true;
  channel.call(kEcho.name, {"x", {}}, options,
               [&](Response response) { answer.set_value(std::move(response)); });
  auto server = start_server({kEcho}, {.address = address});
  EXPECT_EQ(value_or_throw(answer.get_future().get()).body, "x");
}

TEST(Rpc, ASecondServerOnAPortFailsAndTheErrorNamesBoth) {
  auto server = start_server({});
  const absl::Status status =
      RpcServer::start({.address = server->address(), .task = "/job:worker/task:0"}, {}).status();
  EXPECT_EQ(error_code(status), ErrorCode::kAlreadyExists);
  EXPECT_EQ(describe(status),
            absl::StrCat("/job:worker/task:0 cannot listen on ", server->address(),
                         ": the address is held by /job:ps/task:1 (pid ", getpid(),
                         ", incarnation 0000000000001234). Stop that process, or give one of the "
                         "two another address"));
}

TEST(Rpc, BindsOnlyLoopbackUnlessInsecure) {
  // An address of another machine has its own error.
  EXPECT_THAT(describe(RpcServer::start({.address = "192.0.2.1:0", .task = kTask}, {}).status()),
              HasSubstr("this machine does not have this address"));
  for (const char* address : {"0.0.0.0:0", "[::]:0"}) {
    const absl::Status status = RpcServer::start({.address = address, .task = kTask}, {}).status();
    EXPECT_EQ(error_code(status), ErrorCode::kPermissionDenied) << address;
    EXPECT_THAT(describe(status), HasSubstr(address));
    EXPECT_THAT(describe(status), HasSubstr("--insecure"));
  }
  EXPECT_TRUE(RpcServer::start({.address = "localhost:0", .task = kTask}, {}).ok());
  EXPECT_TRUE(Credentials::insecure().check_bind("0.0.0.0:0").ok());
}

TEST(Rpc, StopWaitsForCallsAndRejectsNewOnes) {
  Holder holder;
  auto server = start_server({holder.method(), kEcho});
  Channel channel({.address = server->address(), .task = kTask});
  std::promise<Response> answer;
  channel.call("/test.Test/Hold", {"held", {}}, {},
               [&](Response response) { answer.set_value(std::move(response)); });
  ASSERT_EQ(holder.arrived.get_future().wait_for(seconds(10)), std::future_status::ready);
  std::thread stopper([&] { server->stop(after(seconds(30))); });
  // Calls are served until the stop has begun, and rejected from then on.
  absl::Status refused;
  for (const Time limit = after(seconds(10)); refused.ok() && Clock::real().now() < limit;) {
    refused = channel.call(kEcho.name, {}, within(seconds(5))).status();
  }
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  holder.held->respond(Message{"done", {}});
  EXPECT_EQ(value_or_throw(answer.get_future().get()).body, "done");
  stopper.join();
}

TEST(Rpc, StopCancelsCallsAtTheDeadline) {
  Holder holder;
  auto server = start_server({holder.method()});
  Channel channel({.address = server->address(), .task = kTask});
  std::promise<Response> answer;
  channel.call("/test.Test/Hold", {}, {},
               [&](Response response) { answer.set_value(std::move(response)); });
  ASSERT_EQ(holder.arrived.get_future().wait_for(seconds(10)), std::future_status::ready);
  std::thread releaser([&] {
    ASSERT_EQ(holder.stopped.get_future().wait_for(seconds(10)), std::future_status::ready);
    holder.held.reset();
  });
  server->stop(after(milliseconds(10)));
  releaser.join();
  EXPECT_FALSE(answer.get_future().get().ok());
}

TEST(Rpc, AnswersMayComeFromAnotherThread) {
  ThreadPool pool("test", 2);
  auto server = start_server(
      {{"/test.Test/Later", Roles::all(), Repeats::kHarmless, [&pool](ServerCall call) {
          pool.submit(
              [call = std::move(call)]() mutable { call.respond(std::move(call.request())); });
        }}});
  Channel channel({.address = server->address(), .task = kTask});
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 50; ++j) {
        const at::Tensor x = at::full({1000}, j);
        const Response answer = channel.call("/test.Test/Later", {"x", {x}});
        if (answer.ok() && at::equal(answer->tensors.at(0), x)) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 200);
}

grpc::Status send_raw(const std::string& address, const std::string& bytes) {
  return call_raw(address, kEcho.name, bytes);
}

std::string valid_bytes(const Prefix& prefix) {
  auto writer = value_or_throw(MessageWriter::make(prefix, {"body", {at::rand({4})}}));
  std::string bytes;
  for (const Piece& piece : writer.next_frame(writer.bytes_left())) bytes += piece.bytes;
  return bytes;
}

TEST(Rpc, MalformedRequestsGetAnErrorAndTheServerGoesOn) {
  auto server = start_server({kEcho});
  EXPECT_TRUE(send_raw(server->address(), valid_bytes({})).ok());
  EXPECT_EQ(internal::from_grpc(send_raw(server->address(), std::string(100, 'x'))).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(internal::from_grpc(send_raw(server->address(), "")).code(),
            absl::StatusCode::kInvalidArgument);
  const std::string bytes = valid_bytes({});
  for (size_t cut = 1; cut < bytes.size(); cut += 5) {
    EXPECT_FALSE(send_raw(server->address(), bytes.substr(0, cut)).ok()) << cut;
  }
  EXPECT_FALSE(send_raw(server->address(), bytes + "more").ok());
  Channel channel({.address = server->address(), .task = kTask});
  EXPECT_TRUE(channel.call(kEcho.name, {"still here", {}}).ok());
}

TEST(Rpc, RejectsAnotherProtocolVersionAndNamesBoth) {
  auto server = start_server({kEcho});
  const absl::Status status =
      internal::from_grpc(send_raw(server->address(), valid_bytes({.version = 7})));
  EXPECT_EQ(error_code(status), ErrorCode::kVersionMismatch);
  EXPECT_EQ(describe(status),
            "/job:ps/task:1: the peer speaks protocol version 7, this side speaks 4; run the same "
            "Trireme release on every task");
}

TEST(Rpc, CountsCalls) {
  Metrics metrics;
  auto server = start_server({kEcho}, {.metrics = &metrics});
  Channel channel({.address = server->address(), .task = kTask});
  for (int i = 0; i < 3; ++i) throw_if_error(channel.call(kEcho.name, {"12345", {}}).status());
  server->stop(after(seconds(10)));
  EXPECT_EQ(metrics.counters().at("rpc_server/test.Test/Echo/calls"), 3u);
  EXPECT_EQ(metrics.counters().at("rpc_server/test.Test/Echo/errors"), 0u);
  EXPECT_EQ(metrics.counters().at("rpc_server/test.Test/Echo/bytes_in"), 3u * 45);
  EXPECT_EQ(metrics.histograms().at("rpc_server/test.Test/Echo/latency_us").count, 3u);
}

}  // namespace
}  // namespace trireme
