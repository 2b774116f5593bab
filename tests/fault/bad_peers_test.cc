// A server survives peers that send malformed requests, declare huge sizes or speak another
// protocol version: each gets an error, and the server neither restarts nor allocates what they
// declare. A wrong wall clock on one task changes nothing.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <thread>

#include "trireme/base/machine.h"
#include "trireme/base/status.h"
#include "trireme/base/subprocess.h"
#include "trireme/rpc/grpc_bridge.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/process_cluster.h"
#include "trireme/testing/raw_call.h"

namespace trireme {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

const TaskId kPs = {"ps", 0};
constexpr char kHello[] = "/trireme.Hello/Hello";
constexpr char kDescribe[] = "/trireme.Server/Describe";
constexpr int64_t kAllowed = 64 << 20;

absl::Status send_raw(const std::string& address, const std::string& method,
                      const std::string& bytes) {
  return internal::from_grpc(call_raw(address, method, bytes));
}

std::string bytes_of(const Prefix& prefix, Message message) {
  auto writer = value_or_throw(MessageWriter::make(prefix, std::move(message)));
  std::string bytes;
  for (const Piece& piece : writer.next_frame(writer.bytes_left())) bytes += piece.bytes;
  return bytes;
}

// Returns a message that declares `count` tensors, describes the first one, and has no payload.
std::string with_table(uint32_t count, uint8_t dtype, std::vector<int64_t> sizes) {
  std::string bytes = bytes_of({}, {"", {at::zeros({1})}}).substr(0, 40);
  bytes.append(reinterpret_cast<const char*>(&count), 4);
  bytes += {static_cast<char>(dtype), static_cast<char>(sizes.size()), 0, 0};
  bytes.append(reinterpret_cast<const char*>(sizes.data()), sizes.size() * 8);
  return bytes;
}

class BadPeersTest : public testing::Test {
 protected:
  // Checks that the server is still the same process.
  void expect_unharmed() {
    EXPECT_TRUE(cluster_.is_running(kPs));
    EXPECT_EQ(cluster_.describe(kPs).incarnation, incarnation_);
  }

  ProcessCluster cluster_{{{.workers = 0, .ps = 1}}};
  const std::string address_ = cluster_.spec().address(kPs);
  const uint64_t incarnation_ = cluster_.describe(kPs).incarnation;
};

TEST_F(BadPeersTest, MalformedRequestsAreAnsweredWithAnError) {
  std::mt19937_64 random(12);
  const std::string valid = bytes_of({}, {"body", {at::rand({4})}});
  for (int i = 0; i < 300; ++i) {
    std::string bytes = valid;
    const int changes = 1 + static_cast<int>(random() % 8);
    for (int change = 0; change < changes; ++change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    const absl::Status status = send_raw(address_, i % 2 == 0 ? kHello : kDescribe, bytes);
    EXPECT_NE(status.code(), absl::StatusCode::kUnavailable) << i << ": " << status;
    EXPECT_NE(status.code(), absl::StatusCode::kDeadlineExceeded) << i << ": " << status;
  }
  EXPECT_EQ(error_code(send_raw(address_, kHello, bytes_of({}, {std::string(9, '\xff'), {}}))),
            ErrorCode::kInvalidArgument);
  expect_unharmed();
}

TEST_F(BadPeersTest, RejectsInvalidShapesAndDtypes) {
  for (const int dtype : {0, 28, 255}) {
    EXPECT_EQ(error_code(send_raw(address_, kDescribe, with_table(1, dtype, {1}))),
              ErrorCode::kInvalidArgument)
        << dtype;
  }
  for (const int64_t size : {int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    EXPECT_EQ(error_code(send_raw(address_, kDescribe, with_table(1, 12, {0, size}))),
              ErrorCode::kInvalidArgument)
        << size;
  }
  EXPECT_FALSE(send_raw(address_, kDescribe, with_table(1, 12, std::vector<int64_t>(255, 1))).ok());
  expect_unharmed();
}

TEST_F(BadPeersTest, DoesNotAllocateDeclaredSizes) {
  const int64_t before = process_memory(cluster_.pid(kPs)).resident;
  for (int i = 0; i < 20; ++i) {
    // A tensor of 10 GB, one of 2^80 elements, a billion tensors, and a body of 10 GB. Each is
    // rejected, or fails because its payload never arrives.
    EXPECT_FALSE(send_raw(address_, kDescribe, with_table(1, 12, {2'500'000'000})).ok());
    EXPECT_EQ(error_code(send_raw(address_, kDescribe, with_table(1, 12, {1ll << 40, 1ll << 40}))),
              ErrorCode::kResourceExhausted);
    EXPECT_EQ(error_code(send_raw(address_, kDescribe, with_table(1'000'000'000, 12, {1}))),
              ErrorCode::kResourceExhausted);
    std::string body = bytes_of({}, {"", {}});
    const uint64_t declared = 10'000'000'000;
    std::memcpy(body.data() + 32, &declared, sizeof(declared));
    EXPECT_EQ(error_code(send_raw(address_, kDescribe, body)), ErrorCode::kResourceExhausted);
  }
  EXPECT_LT(process_memory(cluster_.pid(kPs)).resident - before, kAllowed);
  expect_unharmed();
}

TEST_F(BadPeersTest, RejectsAnotherVersionAndNamesBoth) {
  for (uint16_t version : {0, 1, 2, 7, 65535}) {
    const absl::Status status =
        send_raw(address_, kHello, bytes_of({.version = version}, {"", {}}));
    EXPECT_EQ(error_code(status), ErrorCode::kVersionMismatch);
    EXPECT_THAT(describe(status),
                HasSubstr(absl::StrCat("the peer speaks protocol version ", version,
                                       ", this side speaks ", kProtocolVersion)));
  }
  expect_unharmed();
}

// A server that answers one call with a message of another protocol version.
class ForeignServer {
 public:
  explicit ForeignServer(uint16_t version) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterAsyncGenericService(&service_);
    queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
    service_.RequestCall(&context_, &stream_, queue_.get(), queue_.get(), this);
    thread_ = std::thread([this, version] {
      void* tag;
      bool ok;
      if (!queue_->Next(&tag, &ok) || !ok) return;
      const grpc::Slice slice(bytes_of({.request_id = 1, .version = version}, {"", {}}));
      stream_.WriteAndFinish(grpc::ByteBuffer(&slice, 1), {}, grpc::Status::OK, this);
      queue_->Next(&tag, &ok);
    });
  }
  ~ForeignServer() {
    server_->Shutdown(std::chrono::system_clock::now());
    thread_.join();
    queue_->Shutdown();
    void* tag;
    bool ok;
    while (queue_->Next(&tag, &ok)) {
    }
  }
  const std::string& address() const { return address_; }

 private:
  std::string address_;
  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  std::thread thread_;
};

TEST(OtherVersion, StatusNamesTheVersionOfTheServer) {
  const ForeignServer server(7);
  const CompletedProcess shown = value_or_throw(run_process(
      {.argv = {trireme_binary(), "status", "--target", server.address()}}, after(seconds(30))));
  EXPECT_EQ(shown.status.code, 1);
  EXPECT_THAT(shown.stdout_text,
              HasSubstr(absl::StrCat("the peer speaks protocol version 7, this side speaks ",
                                     kProtocolVersion)));
}

TEST(MovedClock, AWrongClockOnOneTaskHasNoEffect) {
  for (const char* moved : {"3600", "-3600"}) {
    const TemporaryFolder folder;
    const std::map<std::string, std::string> environment = {{"LD_PRELOAD", MOVED_CLOCK_LIBRARY},
                                                            {"MOVED_CLOCK_SECONDS", moved}};
    ProcessCluster cluster({{.workers = 1, .ps = 1}, {}, folder.path(), {{kPs, environment}}});
    // The time stamps in its log prove that the clock was really moved.
    std::string lines;
    for (const std::string& line : cluster.logs(kPs)) lines += line + "\n";
    const time_t wall = time(nullptr) + std::atol(moved);
    char hour[32];
    tm local = {};
    strftime(hour, sizeof(hour), "%Y-%m-%d %H:", localtime_r(&wall, &local));
    EXPECT_THAT(lines, HasSubstr(hour));
    for (const TaskId& task : cluster.spec().all_tasks()) {
      const TaskDescription told = cluster.describe(task);
      EXPECT_LT(told.uptime, seconds(60)) << task;
      EXPECT_GE(told.uptime, seconds(0)) << task;
    }
    cluster.restart(kPs);
  }
}

}  // namespace
}  // namespace trireme
