#include "trireme/rpc/limits.h"

#include <ATen/Functions.h>
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "trireme/base/machine.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/receive_budget.h"
#include "trireme/rpc/server.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr char kLimitedEcho[] = "/test.Test/Echo";
constexpr char kHold[] = "/test.Test/Hold";
constexpr char kBig[] = "/test.Test/Big";
constexpr char kPieces[] = "/test.Test/Pieces";
constexpr int64_t kMiB = 1 << 20;

class LimitedService final : public Service {
 public:
  std::vector<Method> methods() override {
    return {{kLimitedEcho, Roles::all(), Repeats::kHarmless,
             [](ServerCall call) { call.respond(std::move(call.request())); }},
            {kHold, Roles::all(), Repeats::kHarmless,
             [this](ServerCall call) {
               MutexLock lock(mutex_);
               held_.push_back(std::move(call));
               arrived_.notify_all();
             }},
            {kBig, Roles::all(), Repeats::kHarmless,
             [this](ServerCall call) {
               call.respond(Message{"", {at::zeros({64 * kMiB}, at::kByte)}});
               big_answers_.add(1);
             }},
            {kPieces, Roles::all(), Repeats::kHarmless, count_pieces, intake_,
             [](const std::string& body) { return body == "scatter"; }}};
  }
  // Answers for each tensor whether it came in pieces, and its sum.
  static void count_pieces(ServerCall call) {
    std::string answer;
    for (size_t i = 0; i < call.request().tensors.size(); ++i) {
      at::Tensor tensor = call.request().tensors[i];
      size_t pieces = 1;
      if (tensor.is_meta()) {
        pieces = call.scattered()[i].pieces().size();
        tensor = call.scattered()[i].gather(tensor.sizes(), tensor.scalar_type());
      }
      absl::StrAppend(&answer, pieces > 1 ? "pieces" : "whole", " ", tensor.sum().item<int64_t>(),
                      "; ");
    }
    call.respond(Message{answer, {}});
  }
  bool wait_for_held(size_t count) {
    MutexLock lock(mutex_);
    const Time limit = after(seconds(10));
    while (held_.size() < count) {
      if (!arrived_.wait_until(mutex_, limit)) return false;
    }
    return true;
  }
  void release() {
    MutexLock lock(mutex_);
    held_.clear();
  }
  uint64_t big_answers() const { return big_answers_.value(); }

 private:
  Counter waited_;
  Counter big_answers_;
  const std::shared_ptr<ByteBudget> intake_ = std::make_shared<ByteBudget>(64 * kMiB, waited_);
  Mutex mutex_;
  CondVar arrived_;
  std::vector<ServerCall> held_ ABSL_GUARDED_BY(mutex_);
};

class LimitsTest : public testing::Test {
 protected:
  void start(const ServerLimits& limits) {
    std::vector<std::unique_ptr<Service>> services;
    services.push_back(std::make_unique<LimitedService>());
    service_ = static_cast<LimitedService*>(services.back().get());
    server_ = value_or_throw(RpcServer::start(
        {.address = "127.0.0.1:0", .task = "/job:ps/task:0", .incarnation = 1, .limits = limits},
        std::move(services)));
    channel_ = std::make_unique<Channel>(ChannelOptions{.address = server_->address()});
  }

  LimitedService* service_ = nullptr;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<Channel> channel_;
};

// Sends arbitrary bytes on a stream, which a Channel would not, and may stop anywhere.
class RawStream {
 public:
  RawStream(const std::string& address, const std::string& method)
      : stub_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())) {
    context_.set_deadline(std::chrono::system_clock::now() + seconds(60));
    stream_ = stub_.PrepareCall(&context_, method, &queue_);
    stream_->StartCall(nullptr);
    next();
  }
  ~RawStream() {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  bool write(const std::string& bytes) {
    grpc::Slice slice(bytes);
    stream_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    return next();
  }
  grpc::Status finish() {
    do {  // skips grants, which come before the status
      stream_->Read(&read_, nullptr);
    } while (next());
    grpc::Status status;
    stream_->Finish(&status, nullptr);
    next();
    return status;
  }

 private:
  bool next() {
    void* tag;
    bool ok = false;
    queue_.Next(&tag, &ok);
    return ok;
  }

  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  grpc::ByteBuffer read_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

// Returns the first bytes of a message with one tensor of `declared` bytes.
std::string first_bytes(int64_t declared) {
  // Takes virtual memory only, since none of it is touched.
  const at::Tensor tensor = BufferPool::shared().empty({declared}, at::kByte);
  auto writer = value_or_throw(MessageWriter::make({}, {"", {tensor}}));
  std::string bytes;
  for (const Piece& piece : writer.next_frame(64)) bytes += piece.bytes;
  return bytes;
}

TEST(ReceiveBudget, LimitsEachConnectionAndAllTogether) {
  internal::ReceiveBudget budget(100, 150);
  {
    auto first = budget.take("a", 60);
    ASSERT_TRUE(first.ok());
    EXPECT_FALSE(budget.take("a", 41).ok());
    EXPECT_TRUE(budget.take("a", 40).ok());
    auto second = budget.take("b", 90);
    ASSERT_TRUE(second.ok());
    EXPECT_THAT(describe(budget.take("c", 1).status()),
                HasSubstr("the limit of the server is 150"));
    EXPECT_FALSE(budget.take("c", ~uint64_t{0}).ok());
  }
  EXPECT_TRUE(budget.take("c", 100).ok());
}

TEST_F(LimitsTest, RejectsATooLargeDeclaredSizeBeforeAllocating) {
  start({.connection_receive_bytes = 1 << 30, .receive_bytes = 1 << 30});
  const std::string bytes = first_bytes(int64_t{10} << 30);
  const int64_t before = process_memory().resident;
  for (int i = 0; i < 20; ++i) {
    RawStream stream(server_->address(), kLimitedEcho);
    stream.write(bytes);
    const grpc::Status status = stream.finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("declares 10737418240 bytes"));
  }
  EXPECT_LT(process_memory().resident - before, 64 * kMiB);
}

TEST_F(LimitsTest, ARequestCountsUntilItIsComplete) {
  start({.connection_receive_bytes = 48 * kMiB, .receive_bytes = 64 * kMiB});
  {
    RawStream first(server_->address(), kLimitedEcho);
    first.write(first_bytes(40 * kMiB));
    // The first request counts as soon as its declaration has arrived.
    absl::Status refused;
    const at::Tensor other = at::zeros({40 * kMiB}, at::kByte);
    for (const Time limit = after(seconds(20)); refused.ok() && Clock::real().now() < limit;) {
      refused = channel_->call(kLimitedEcho, {"", {other}}, {.large_response = true}).status();
    }
    EXPECT_EQ(error_code(refused), ErrorCode::kResourceExhausted);
    EXPECT_TRUE(channel_->call(kLimitedEcho, {"small ones always get through", {}}).ok());
  }
  // The first request was cancelled, so there is room again.
  absl::Status status = absl::UnknownError("");
  const at::Tensor other = at::zeros({40 * kMiB}, at::kByte);
  for (const Time limit = after(seconds(20)); !status.ok() && Clock::real().now() < limit;) {
    status = channel_->call(kLimitedEcho, {"", {other}}, {.large_response = true}).status();
  }
  EXPECT_TRUE(status.ok()) << status;
  // Any number of requests may come one after the other.
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(channel_->call(kLimitedEcho, {"", {other}}, {.large_response = true}).ok());
  }
}

TEST_F(LimitsTest, LeavesLargeTensorsInPiecesIfTheMethodAsksAndThereIsRoom) {
  const Message request{"scatter", {at::ones({3}), at::ones({8 * kMiB}, at::kByte)}};
  start({});
  EXPECT_EQ(value_or_throw(channel_->call(kPieces, request)).body, "whole 3; pieces 8388608; ");
  EXPECT_EQ(value_or_throw(channel_->call(kPieces, {"", request.tensors})).body,
            "whole 3; whole 8388608; ");
  start({.unread_bytes = 16 * kMiB});
  EXPECT_EQ(value_or_throw(channel_->call(kPieces, request)).body, "whole 3; whole 8388608; ");
}

TEST_F(LimitsTest, RejectsTooManyCalls) {
  start({.calls = 2});
  std::vector<std::future<Response>> answers;
  for (int i = 0; i < 2; ++i) {
    auto answer = std::make_shared<std::promise<Response>>();
    answers.push_back(answer->get_future());
    channel_->call(kHold, {}, {}, [answer](Response r) { answer->set_value(std::move(r)); });
  }
  ASSERT_TRUE(service_->wait_for_held(2));
  const absl::Status status = channel_->call(kLimitedEcho, {}).status();
  EXPECT_EQ(error_code(status), ErrorCode::kResourceExhausted);
  EXPECT_THAT(describe(status), HasSubstr("2 calls in flight"));
  service_->release();
  for (auto& answer : answers) answer.wait();
  absl::Status again = absl::UnknownError("");
  for (const Time limit = after(seconds(10)); !again.ok() && Clock::real().now() < limit;) {
    again = channel_->call(kLimitedEcho, {}).status();
  }
  EXPECT_TRUE(again.ok());
}

TEST_F(LimitsTest, CallsBeyondTheConnectionLimitWait) {
  start({.connection_calls = 4});
  std::vector<std::future<Response>> answers;
  for (int i = 0; i < 100; ++i) {
    auto answer = std::make_shared<std::promise<Response>>();
    answers.push_back(answer->get_future());
    channel_->call(kLimitedEcho, {}, {}, [answer](Response r) { answer->set_value(std::move(r)); });
  }
  for (auto& answer : answers) EXPECT_TRUE(answer.get().ok());
}

TEST_F(LimitsTest, CancelsACallThatStopsSending) {
  start({.transfer_time = milliseconds(300)});
  RawStream silent(server_->address(), kLimitedEcho);
  RawStream midway(server_->address(), kLimitedEcho);
  midway.write(first_bytes(40 * kMiB));
  EXPECT_EQ(silent.finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(midway.finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(channel_->call(kLimitedEcho, {}).ok());
}

TEST_F(LimitsTest, CancelsACallWhoseAnswerIsNotTaken) {
  start({.calls = 1, .transfer_time = milliseconds(300)});
  RawStream stream(server_->address(), kBig);
  auto writer = value_or_throw(MessageWriter::make({}, {}));
  std::string bytes;
  for (const Piece& piece : writer.next_frame(writer.bytes_left())) bytes += piece.bytes;
  stream.write(bytes);
  const Time limit = after(seconds(20));
  while (service_->big_answers() == 0 && Clock::real().now() < limit) std::this_thread::yield();
  ASSERT_EQ(service_->big_answers(), 1u);
  // The answer does not end, since nobody takes it. Its call is the only one that may be in flight,
  // so another one succeeds only once this one was cancelled.
  bool served = false;
  while (!served && Clock::real().now() < limit) served = channel_->call(kLimitedEcho, {}).ok();
  EXPECT_TRUE(served);
}

TEST_F(LimitsTest, DoesNotCancelASlowHandler) {
  start({.transfer_time = milliseconds(100)});
  std::promise<Response> answer;
  channel_->call(kHold, {}, {}, [&](Response r) { answer.set_value(std::move(r)); });
  ASSERT_TRUE(service_->wait_for_held(1));
  std::future<Response> future = answer.get_future();
  EXPECT_EQ(future.wait_for(milliseconds(500)), std::future_status::timeout);
  service_->release();
  EXPECT_EQ(error_code(future.get().status()), ErrorCode::kInternal);  // dropped, not cancelled
}

TEST_F(LimitsTest, ClosesAConnectionWithoutAHandshake) {
  start({.handshake_time = milliseconds(300)});
  const std::string address = server_->address();
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in peer = {};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(std::stoi(address.substr(address.rfind(':') + 1)));
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  timeval limit = {.tv_sec = 20};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  ASSERT_EQ(connect(socket, reinterpret_cast<sockaddr*>(&peer), sizeof(peer)), 0);
  char bytes[256];
  ssize_t got = 0;
  while ((got = recv(socket, bytes, sizeof(bytes), 0)) > 0) {  // the server's own settings
  }
  EXPECT_TRUE(got == 0 || errno == ECONNRESET) << "still open: " << strerror(errno);
  close(socket);
}

}  // namespace
}  // namespace trireme
