// A stream carries messages in order, reports those that were taken, and ends with an error that
// says why.
#include "trireme/rpc/message_stream.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <thread>

#include "trireme/base/status.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/server.h"
#include "trireme/testing/raw_call.h"

namespace trireme::internal {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

constexpr char kStreamMethod[] = "/test.Test/Stream";
constexpr uint64_t kStreamServer = 77;

// A server that keeps the messages of its streams, and a client's stream to it.
class MessageStreamTest : public testing::Test {
 protected:
  class Streams final : public Service {
   public:
    explicit Streams(StreamHandler handler) : handler_(std::move(handler)) {}
    std::vector<Method> methods() override {
      return {{.name = kStreamMethod,
               .callers = Roles::all(),
               .repeats = Repeats::kHarmless,
               .handler = nullptr,
               .on_message = handler_}};
    }

   private:
    const StreamHandler handler_;
  };

  MessageStreamTest() { start({}); }

  void start(const ServerLimits& limits) {
    channel_.reset();
    server_.reset();
    std::vector<std::unique_ptr<Service>> services;
    services.push_back(std::make_unique<Streams>([this](StreamMessage message) {
      if (const StreamHandler handle = handler()) return handle(std::move(message));
      MutexLock lock(mutex_);
      arrived_.push_back(std::move(message));
      changed_.notify_all();
    }));
    server_ = value_or_throw(RpcServer::start({.address = "127.0.0.1:0",
                                               .task = "/job:worker/task:1",
                                               .incarnation = kStreamServer,
                                               .threads = 1,
                                               .limits = limits},
                                              std::move(services)));
    channel_ = std::make_unique<Channel>(
        ChannelOptions{.address = server_->address(), .task = "/job:worker/task:1", .caller = 5});
  }

  // Lets `handle` have the messages instead of keeping them.
  void handle_by(StreamHandler handle) {
    MutexLock lock(mutex_);
    handle_ = std::move(handle);
  }
  StreamHandler handler() {
    MutexLock lock(mutex_);
    return handle_;
  }

  std::shared_ptr<MessageStream> open(uint64_t incarnation = kStreamServer) {
    return channel_->open_stream(kStreamMethod, incarnation, stop_.get_token());
  }

  static std::future<absl::Status> send(MessageStream& stream, Message message) {
    auto taken = std::make_shared<std::promise<absl::Status>>();
    stream.send(std::move(message),
                [taken](const absl::Status& status) { taken->set_value(status); });
    return taken->get_future();
  }

  // Blocks until a message has arrived, and removes it.
  StreamMessage next() {
    MutexLock lock(mutex_);
    const Time limit = after(seconds(20));
    while (arrived_.empty()) {
      if (!changed_.wait_until(mutex_, limit)) throw std::runtime_error("no message arrived");
    }
    StreamMessage message = std::move(arrived_.front());
    arrived_.pop_front();
    return message;
  }

  static absl::Status result(std::future<absl::Status>& future) {
    if (future.wait_for(seconds(20)) != std::future_status::ready)
      return absl::UnknownError("late");
    return future.get();
  }

  Mutex mutex_;
  CondVar changed_;
  StreamHandler handle_ ABSL_GUARDED_BY(mutex_);  // null while messages are kept
  std::deque<StreamMessage> arrived_ ABSL_GUARDED_BY(mutex_);
  std::stop_source stop_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<Channel> channel_;
};

TEST_F(MessageStreamTest, CarriesMessagesInOrderAndReportsThoseThatWereTaken) {
  const auto stream = open();
  const at::Tensor large = at::randint(0, 256, {3 << 20}, at::kByte);
  std::vector<std::future<absl::Status>> sent;
  for (int i = 0; i < 50; ++i) {
    sent.push_back(send(*stream, {std::to_string(i), {i % 10 == 0 ? large : at::full({3}, i)}}));
  }
  std::vector<StreamMessage> arrived;
  for (int i = 0; i < 50; ++i) {
    arrived.push_back(next());
    EXPECT_EQ(arrived[i].message.body, std::to_string(i));
    EXPECT_EQ(arrived[i].caller, 5u);
    ASSERT_EQ(arrived[i].message.tensors.size(), 1u);
    at::Tensor tensor = arrived[i].message.tensors[0];
    if (i % 10 == 0) {
      ASSERT_TRUE(tensor.is_meta());  // It stays in gRPC's memory.
      tensor = arrived[i].scattered[0].gather(tensor.sizes(), tensor.scalar_type());
    }
    EXPECT_TRUE(at::equal(tensor, i % 10 == 0 ? large : at::full({3}, i)));
  }
  EXPECT_EQ(sent[0].wait_for(seconds(0)), std::future_status::timeout);
  for (const StreamMessage& message : arrived) message.taken(absl::OkStatus());
  for (auto& each : sent) EXPECT_TRUE(result(each).ok());
}

TEST_F(MessageStreamTest, ErrorOfTheReceiverEndsTheStream) {
  const auto stream = open();
  auto first = send(*stream, {"first", {}});
  auto second = send(*stream, {"second", {}});
  next().taken(absl::OkStatus());
  next().taken(make_status(ErrorCode::kAborted, "not this one"));
  EXPECT_TRUE(result(first).ok());
  for (absl::Status status : {result(second), [&] {
                                auto third = send(*stream, {"third", {}});
                                return result(third);
                              }()}) {
    EXPECT_EQ(error_code(status), ErrorCode::kAborted) << status;
    EXPECT_EQ(status.message(), "not this one");
    EXPECT_EQ(error_origin(status).task, "/job:worker/task:1");
  }
}

TEST_F(MessageStreamTest, NothingArrivesAfterAnError) {
  StreamMessage first;
  int later = 0;
  // Runs on the only thread of the server, so the number of the first message is still being
  // written when the second message causes the error.
  handle_by([&](StreamMessage message) {
    if (message.message.body == "0") {
      first = std::move(message);
    } else if (message.message.body == "1") {
      first.taken(absl::OkStatus());
      message.taken(make_status(ErrorCode::kAborted, "not this one"));
    } else {
      ++later;
    }
  });
  for (int round = 0; round < 100; ++round) {
    const auto stream = open();
    std::vector<std::future<absl::Status>> sent;
    for (int i = 0; i < 20; ++i) sent.push_back(send(*stream, {std::to_string(i), {}}));
    EXPECT_EQ(error_code(result(sent.back())), ErrorCode::kAborted);
  }
  server_.reset();
  EXPECT_EQ(later, 0);
}

TEST_F(MessageStreamTest, MessagesThatAreNotTakenAreLimited) {
  ServerLimits limits;
  limits.connection_receive_bytes = 8 << 20;
  start(limits);
  const at::Tensor part = at::zeros({1 << 20}, at::kByte);
  const auto stream = open();
  std::vector<std::future<absl::Status>> sent;
  for (int i = 0; i < 20; ++i) sent.push_back(send(*stream, {"", {part}}));
  for (auto& each : sent) {
    const absl::Status status = result(each);
    ASSERT_EQ(error_code(status), ErrorCode::kResourceExhausted) << status;
    EXPECT_EQ(error_origin(status).task, "/job:worker/task:1");
  }
  // The messages of a stream that has ended still count.
  const auto second = open();
  auto refused = send(*second, {"", {part}});
  EXPECT_EQ(error_code(result(refused)), ErrorCode::kResourceExhausted);
  std::deque<StreamMessage> kept;
  {
    MutexLock lock(mutex_);
    kept.swap(arrived_);
  }
  EXPECT_EQ(kept.size(), 7u) << "the eighth, with its prefix, would exceed the limit";
  // A message makes room when it is taken, and when it is dropped.
  kept.front().taken(absl::OkStatus());
  const auto third = open();
  auto fits = send(*third, {"", {part}});
  next().taken(absl::OkStatus());
  EXPECT_TRUE(result(fits).ok());
  kept.clear();
  for (int i = 0; i < 7; ++i) send(*third, {"", {part}});
  for (int i = 0; i < 7; ++i) kept.push_back(next());
  for (StreamMessage& message : kept) message.taken(absl::OkStatus());
  auto last = send(*third, {"", {part}});
  const StreamMessage outlives_the_server = next();
  channel_.reset();
  server_.reset();
  EXPECT_FALSE(result(last).ok());
}

TEST_F(MessageStreamTest, SmallMessagesThatAreNotTakenAreLimited) {
  ServerLimits limits;
  limits.receive_bytes = 1 << 20;
  start(limits);
  const auto stream = open();
  std::vector<std::future<absl::Status>> sent;
  for (int i = 0; i < 2000; ++i) sent.push_back(send(*stream, {"small", {}}));
  EXPECT_EQ(error_code(result(sent.back())), ErrorCode::kResourceExhausted);
  MutexLock lock(mutex_);
  EXPECT_LT(arrived_.size(), 1024u) << "each takes memory besides its bytes";
  EXPECT_GT(arrived_.size(), 500u);
}

TEST_F(MessageStreamTest, MemoryThatAFrameCannotFillIsRefused) {
  auto writer = value_or_throw(
      MessageWriter::make({.sender = 5, .receiver = kStreamServer}, {"", {at::ones({1})}}));
  std::string frame;
  for (const Piece& piece : writer.next_frame(writer.bytes_left())) frame += piece.bytes;
  const int64_t floats = int64_t{16} << 30;
  std::memcpy(frame.data() + 48, &floats, sizeof(floats));  // the size in the tensor table
  const absl::Status status = from_grpc(call_raw(server_->address(), kStreamMethod, frame));
  EXPECT_EQ(error_code(status), ErrorCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("this one declares 68719476736 bytes"));
}

TEST_F(MessageStreamTest, OtherIncarnationIsRejected) {
  const auto stream = open(kStreamServer + 1);
  auto sent = send(*stream, {"late", {}});
  EXPECT_EQ(error_code(result(sent)), ErrorCode::kIncarnationChanged);
}

TEST_F(MessageStreamTest, StopOfTheServerEndsTheStreamAtOnce) {
  const auto stream = open();
  auto sent = send(*stream, {"kept", {}});
  const StreamMessage kept = next();
  const Time start = Clock::real().now();
  server_->stop(after(seconds(60)));
  EXPECT_LT(Clock::real().now() - start, seconds(20));
  const absl::Status status = result(sent);
  EXPECT_EQ(error_code(status), ErrorCode::kTaskUnreachable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(kStreamMethod));
  kept.taken(absl::OkStatus());  // It comes too late, and does no harm.
}

TEST_F(MessageStreamTest, StopTokenEndsTheStream) {
  const auto stream = open();
  auto sent = send(*stream, {"kept", {}});
  next();
  stop_.request_stop();
  EXPECT_FALSE(result(sent).ok());
}

TEST_F(MessageStreamTest, MessageThatIsTooLargeIsRejected) {
  const auto stream = open();
  auto sent = send(*stream, {"", {at::empty({5 << 20}, at::kByte)}});
  EXPECT_EQ(error_code(result(sent)), ErrorCode::kInvalidArgument);
  auto next_sent = send(*stream, {"fits", {}});
  next().taken(absl::OkStatus());
  EXPECT_TRUE(result(next_sent).ok());
}

}  // namespace
}  // namespace trireme::internal
