// The memory of a server stays within its limit although clients ignore flow control, and the
// server answers others afterwards. A thousand connections each send a request that has to wait, as
// fast as the transport takes it. This binary starts itself again as the process that sends.
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/file_limit.h"
#include "trireme/base/machine.h"
#include "trireme/base/subprocess.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/server.h"

namespace trireme {
namespace {

using std::chrono::seconds;

constexpr char kHeld[] = "/test.Test/Held";
constexpr char kEcho[] = "/test.Test/Echo";
constexpr char kSenderFlag[] = "--sender";
constexpr int kConnections = 1000;
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kUnread = 192 * kMiB;
constexpr int64_t kOverhead = 64 * kMiB;  // memory of the calls and connections themselves

// A service whose calls of kHeld all wait: the constructor takes the whole budget and keeps it.
class HeldService final : public Service {
 public:
  std::vector<Method> methods() override {
    return {{kHeld, Roles::all(), Repeats::kHarmless,
             [](ServerCall call) { call.respond(Message()); }, budget_},
            {kEcho, Roles::all(), Repeats::kHarmless,
             [](ServerCall call) { call.respond(std::move(call.request())); }}};
  }

  HeldService() {
    budget_->ask(1, [] {});
  }
  uint64_t held_back() const { return held_back_->value(); }

 private:
  std::unique_ptr<Metrics> metrics_ = std::make_unique<Metrics>();
  Counter* held_back_ = &metrics_->counter("held");
  std::shared_ptr<ByteBudget> budget_ = std::make_shared<ByteBudget>(1, *held_back_);
};

// A call that writes frame after frame and ignores grants.
class Flood {
 public:
  Flood(const std::string& address, grpc::CompletionQueue& queue, const grpc::ByteBuffer& first,
        const grpc::ByteBuffer& next)
      : next_(next) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    stub_ = std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
    context_.set_wait_for_ready(true);
    stream_ = stub_->PrepareCall(&context_, kHeld, &queue);
    context_.set_initial_metadata_corked(true);
    stream_->StartCall(nullptr);
    stream_->Write(first, this);
  }
  void on_written(bool ok) {
    if (ok) stream_->Write(next_, this);
  }

 private:
  const grpc::ByteBuffer& next_;
  std::unique_ptr<grpc::GenericStub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

int run_sender(const std::string& address) {
  raise_file_limit();
  const at::Tensor tensor = BufferPool::shared().empty({int64_t{1} << 30}, at::kByte);
  auto writer = value_or_throw(MessageWriter::make({}, {"", {tensor}}));
  std::string head;
  for (const Piece& piece : writer.next_frame(64)) head += piece.bytes;
  const grpc::Slice first_slice(head), next_slice(std::string(kFrameBytes, 'x'));
  const grpc::ByteBuffer first(&first_slice, 1), next(&next_slice, 1);
  grpc::CompletionQueue queue;
  std::vector<std::unique_ptr<Flood>> floods;
  for (int i = 0; i < kConnections; ++i) {
    floods.push_back(std::make_unique<Flood>(address, queue, first, next));
  }
  void* tag = nullptr;
  bool ok = false;
  while (queue.Next(&tag, &ok)) static_cast<Flood*>(tag)->on_written(ok);  // until it is killed
  return 0;
}

TEST(Flood, SendersThatIgnoreGrantsAreBounded) {
  raise_file_limit();
  std::vector<std::unique_ptr<Service>> services;
  services.push_back(std::make_unique<HeldService>());
  const auto* service = static_cast<HeldService*>(services.back().get());
  const auto server = value_or_throw(RpcServer::start({.address = "127.0.0.1:0",
                                                       .task = "/job:ps/task:0",
                                                       .incarnation = 1,
                                                       .limits = {.unread_bytes = kUnread}},
                                                      std::move(services)));
  const int64_t before = process_memory().resident;
  auto sender = value_or_throw(
      Subprocess::start({.argv = {"/proc/self/exe", kSenderFlag, server->address()}}));

  // Samples until no more requests arrive and the memory no longer grows.
  int64_t highest = 0;
  uint64_t most_held = 0;
  Time quiet = after(seconds(10));
  const Time limit = after(seconds(60));
  for (Time now = Clock::real().now(); now < quiet && now < limit; now = Clock::real().now()) {
    const int64_t grown = process_memory().resident - before;
    if (grown > highest + kMiB || service->held_back() > most_held) quiet = after(seconds(5));
    highest = std::max(highest, grown);
    most_held = std::max(most_held, service->held_back());
    ASSERT_FALSE(sender->wait(after(std::chrono::milliseconds(20)))) << "the sender has ended";
  }
  std::printf("%llu requests were held back; the server grew by %.0f MiB, its limit is %.0f MiB\n",
              static_cast<unsigned long long>(most_held), highest / 1048576.0, kUnread / 1048576.0);
  EXPECT_GT(most_held, 10u);  // gRPC accepts no more while memory is short
  EXPECT_LT(highest, kUnread + kOverhead);

  sender->send_signal(SIGKILL);
  Channel channel({.address = server->address()});
  const at::Tensor tensor = BufferPool::shared().empty({16 * kMiB}, at::kByte);
  const Response answer = channel.call(
      kEcho, {"", {tensor}},
      {.deadline = after(seconds(30)), .large_response = true, .retry = RetryPolicy()});
  EXPECT_TRUE(answer.ok()) << answer.status();
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == trireme::kSenderFlag) {
    return trireme::run_sender(argv[2]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
