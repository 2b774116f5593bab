#include "trireme/rpc/shared_message.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <future>

#include "absl/strings/str_replace.h"
#include "trireme/base/machine.h"
#include "trireme/base/mutex.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/grpc_bridge.h"
#include "trireme/rpc/hello.pb.h"
#include "trireme/rpc/segment_cache.h"
#include "trireme/rpc/server.h"
#include "trireme/rpc/shared_message.pb.h"
#include "trireme/testing/raw_call.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr char kSharingTask[] = "/job:ps/task:0";
constexpr char kSumShared[] = "/test.Test/Sum";    // adds up its tensors; they may be shared
constexpr char kFillShared[] = "/test.Test/Fill";  // returns two tensors filled with a number
constexpr char kSumOnce[] = "/test.Test/Once";
constexpr int64_t kSharedFloats = 1 << 20;

class SharingMethods final : public Service {
 public:
  explicit SharingMethods(std::vector<Method> methods) : methods_(std::move(methods)) {}
  std::vector<Method> methods() override { return methods_; }

 private:
  std::vector<Method> methods_;
};

// Answers with two tensors. The first one is written to its place, if there is one.
void fill_place(ServerCall call) {
  const double value = std::stod(call.request().body);
  at::Tensor large = call.place_for(0, {kSharedFloats}, at::kFloat);
  if (!large.defined()) large = at::empty({kSharedFloats});
  large.fill_(value);
  call.respond(Message{"filled", {large, at::full({3}, value)}});
}

void sum_shared(ServerCall call) {
  double sum = 0;
  for (const at::Tensor& tensor : call.request().tensors) {
    sum += tensor.sum(at::kDouble).item<double>();
  }
  call.respond(Message{std::to_string(sum) + " " + call.request().body, {}});
}

struct SharingServer {
  explicit SharingServer(ServerLimits limits = {}, Handler filler = fill_place) {
    const Method summing{.name = kSumShared,
                         .callers = Roles::all(),
                         .repeats = Repeats::kHarmless,
                         .handler = sum_shared,
                         .shares = [](const std::string& body) { return body != "private"; }};
    std::vector<std::unique_ptr<Service>> services;
    services.push_back(std::make_unique<SharingMethods>(
        std::vector<Method>{summing,
                            {kFillShared, Roles::all(), Repeats::kHarmless, std::move(filler)},
                            {kSumOnce, Roles::all(), Repeats::kAnsweredOnce, sum_shared}}));
    server = value_or_throw(RpcServer::start({.address = "127.0.0.1:0",
                                              .task = kSharingTask,
                                              .incarnation = 7,
                                              .limits = limits,
                                              .metrics = &metrics},
                                             std::move(services)));
  }

  std::unique_ptr<Channel> channel() const {
    auto channel = std::make_unique<Channel>(
        ChannelOptions{.address = server->address(), .task = kSharingTask, .shared_memory = true});
    throw_if_error(channel->hello(after(seconds(20))).status());
    return channel;
  }

  uint64_t count(const std::string& method, const std::string& what) const {
    return metrics.counters().at("rpc_server" + method + "/" + what);
  }

  Metrics metrics;
  std::unique_ptr<RpcServer> server;
};

CallOptions sharing_options(CallSharing shared, Duration attempt_time = seconds(20)) {
  return {.deadline = after(seconds(30)),
          .large_response = true,
          .retry = RetryPolicy{.attempt_time = attempt_time, .first_delay = milliseconds(1)},
          .shared = std::move(shared)};
}

// Offers a place for the large tensor of Fill.
std::shared_ptr<const SharedPlaces> offer_place() {
  auto region = value_or_throw(SharedRegion::take(kSharedFloats * sizeof(float)));
  const at::Tensor place = region->empty({kSharedFloats}, at::kFloat);
  return std::make_shared<const SharedPlaces>(SharedPlaces{region, {{0, place}}});
}

TEST(SharedMessage, TensorsOfRequestsStayInSharedMemory) {
  const SharingServer server;
  const auto channel = server.channel();
  ASSERT_TRUE(channel->shares_memory());
  const at::Tensor large = at::ones({kSharedFloats}), odd = at::full({7}, 2.0),
                   none = at::ones({0, 3});
  for (int i = 0; i < 3; ++i) {
    const Message request{"body", {odd, large, none, large.slice(0, 0, kSharedFloats, 2)}};
    const Message answer =
        value_or_throw(channel->call(kSumShared, request, sharing_options({.request = true})));
    EXPECT_EQ(answer.body, "1572878.000000 body");
  }
  EXPECT_LT(server.count(kSumShared, "bytes_in"), 4096u);
  // Small tensors go over the connection.
  const Message small{"", {at::ones({1000})}};
  value_or_throw(channel->call(kSumShared, small, sharing_options({.request = true})));
  EXPECT_GT(server.count(kSumShared, "bytes_in"), 4000u);
}

TEST(SharedMessage, TensorsOfAnswersAreWrittenToTheirPlaces) {
  const SharingServer server;
  const auto channel = server.channel();
  std::string handle;
  for (int i = 1; i <= 3; ++i) {
    const auto places = offer_place();
    if (i > 1) EXPECT_EQ(places->region->handle(), handle) << "the memory is used again";
    handle = places->region->handle();
    const Message answer = value_or_throw(
        channel->call(kFillShared, {std::to_string(i), {}}, sharing_options({.answer = places})));
    EXPECT_EQ(answer.body, "filled");
    ASSERT_EQ(answer.tensors.size(), 2u);
    EXPECT_EQ(answer.tensors[0].data_ptr(), places->tensors.at(0).data_ptr());
    EXPECT_TRUE(answer.tensors[0].equal(at::full({kSharedFloats}, double(i))));
    EXPECT_TRUE(answer.tensors[1].equal(at::full({3}, double(i))));
    EXPECT_FALSE(places->region->retired());
  }
  EXPECT_LT(server.count(kFillShared, "bytes_out"), 4096u);
}

TEST(SharedMessage, APlaceOfAnotherShapeIsNotUsed) {
  const SharingServer server;
  const auto channel = server.channel();
  auto region = value_or_throw(SharedRegion::take(kSharedFloats * sizeof(float)));
  const auto places = std::make_shared<const SharedPlaces>(
      SharedPlaces{region, {{0, region->empty({kSharedFloats / 2, 2}, at::kFloat)}}});
  const Message answer =
      value_or_throw(channel->call(kFillShared, {"4", {}}, sharing_options({.answer = places})));
  EXPECT_NE(answer.tensors[0].data_ptr(), places->tensors.at(0).data_ptr());
  EXPECT_TRUE(answer.tensors[0].equal(at::full({kSharedFloats}, 4.0)));
}

TEST(SharedMessage, AServerThatCannotOpenTheMemoryGetsTheTensorsOverTheConnection) {
  const SharingServer server({.shared_bytes = 1 << 20});  // less than the regions have
  for (const bool request : {true, false}) {
    const auto channel = server.channel();
    ASSERT_TRUE(channel->shares_memory()) << "the server can open the small segment of the hello";
    if (request) {
      const Message answer = value_or_throw(channel->call(
          kSumShared, {"", {at::ones({kSharedFloats})}}, sharing_options({.request = true})));
      EXPECT_EQ(answer.body, "1048576.000000 ");
    } else {
      const auto places = offer_place();
      const Message answer = value_or_throw(
          channel->call(kFillShared, {"5", {}}, sharing_options({.answer = places})));
      EXPECT_NE(answer.tensors[0].data_ptr(), places->tensors.at(0).data_ptr());
      EXPECT_TRUE(answer.tensors[0].equal(at::full({kSharedFloats}, 5.0)));
      EXPECT_FALSE(places->region->retired()) << "the server has answered";
    }
    EXPECT_FALSE(channel->shares_memory()) << "the channel does not try again";
  }
}

TEST(SharedMessage, AServerThatIsUnavailableForAnotherReasonKeepsSharing) {
  std::atomic<int> calls = 0;
  const SharingServer server({}, [&](ServerCall call) {
    if (calls.fetch_add(1) > 0) return fill_place(std::move(call));
    call.respond(make_status(ErrorCode::kUnavailable, "the server is stopping"));
  });
  const auto channel = server.channel();
  for (int i = 0; i < 2; ++i) {
    const auto places = offer_place();
    const Message answer =
        value_or_throw(channel->call(kFillShared, {"5", {}}, sharing_options({.answer = places})));
    EXPECT_EQ(answer.tensors[0].data_ptr() == places->tensors.at(0).data_ptr(), i == 1)
        << "only the first attempt of a call uses shared memory";
    EXPECT_TRUE(channel->shares_memory());
  }
}

TEST(SharedMessage, AHelloMapsNoLargeSegment) {
  const SharingServer server;
  const auto channel = server.channel();
  for (const auto& [bytes, opened] : {std::pair(1, true), {1 << 20, false}}) {
    const auto segment = value_or_throw(SharedSegment::create(bytes));
    HelloRequest request;
    request.set_protocol_version(kProtocolVersion);
    request.set_shared_segment(segment->handle());
    const Message answer = value_or_throw(channel->call(kHelloMethod, make_message(request), {}));
    EXPECT_EQ(value_or_throw(parse_body<HelloResponse>(answer)).shares_memory(), opened);
  }
}

TEST(SharedMessage, LargeDescriptionsAndBodiesUseTheConnection) {
  const SharingServer server;
  const auto channel = server.channel();
  const std::string body((1 << 20) + 1, 'x');
  const Message answer = value_or_throw(channel->call(
      kSumShared, {body, {at::ones({kSharedFloats})}}, sharing_options({.request = true})));
  EXPECT_EQ(answer.body, "1048576.000000 " + body);
  EXPECT_GT(server.count(kSumShared, "bytes_in"), kSharedFloats * sizeof(float));
  const Message many{"", std::vector<at::Tensor>(30'000, at::ones({16}))};
  EXPECT_EQ(
      value_or_throw(channel->call(kSumShared, many, sharing_options({.request = true}))).body,
      "480000.000000 ");
  EXPECT_TRUE(channel->shares_memory());
}

TEST(SharedMessage, AServerMayUseNoSharedMemory) {
  const SharingServer server({.shared_bytes = 0});
  const auto channel = server.channel();
  EXPECT_FALSE(channel->shares_memory());
  const Message answer = value_or_throw(channel->call(kSumShared, {"", {at::ones({kSharedFloats})}},
                                                      sharing_options({.request = true})));
  EXPECT_EQ(answer.body, "1048576.000000 ");
}

// A call that ends without an answer may still be written to by the server. Its memory must not
// become that of a later call, and the late write must not be seen.
TEST(SharedMessage, MemoryOfACallWithoutAnAnswerIsNotUsedAgain) {
  std::promise<ServerCall> first;  // the call that is not answered in time
  std::atomic<int> calls = 0;
  const SharingServer server({}, [&](ServerCall call) {
    if (calls.fetch_add(1) == 0) return first.set_value(std::move(call));
    fill_place(std::move(call));
  });
  const auto channel = server.channel();
  auto places = offer_place();
  const std::string given_up = places->region->handle();
  const Message answer = value_or_throw(
      channel->call(kFillShared, {"6", {}}, sharing_options({.answer = places}, seconds(3))));
  EXPECT_GE(calls, 2);
  EXPECT_NE(answer.tensors[0].data_ptr(), places->tensors.at(0).data_ptr());
  EXPECT_TRUE(places->region->retired());
  places.reset();  // a region that was not given up would now be that of the next call

  auto held = first.get_future();
  ASSERT_EQ(held.wait_for(seconds(20)), std::future_status::ready);
  ServerCall late = held.get();
  const auto next = offer_place();
  EXPECT_NE(next->region->handle(), given_up);
  next->tensors.at(0).fill_(8);
  late.place_for(0, {kSharedFloats}, at::kFloat).fill_(-1);
  late.respond(Message{});
  EXPECT_TRUE(answer.tensors[0].equal(at::full({kSharedFloats}, 6.0)));
  EXPECT_TRUE(next->tensors.at(0).equal(at::full({kSharedFloats}, 8.0)));
}

TEST(SharedMessage, MemoryOfARequestWithoutAnAnswerIsNotUsedAgain) {
  std::promise<ServerCall> first;
  std::vector<std::unique_ptr<Service>> services;
  std::atomic<int> calls = 0;
  services.push_back(std::make_unique<SharingMethods>(
      std::vector<Method>{{.name = kSumShared,
                           .callers = Roles::all(),
                           .repeats = Repeats::kHarmless,
                           .handler =
                               [&](ServerCall call) {
                                 if (calls.fetch_add(1) == 0)
                                   return first.set_value(std::move(call));
                                 sum_shared(std::move(call));
                               },
                           .shares = [](const std::string&) { return true; }}}));
  const auto server = value_or_throw(RpcServer::start(
      {.address = "127.0.0.1:0", .task = kSharingTask, .incarnation = 7}, std::move(services)));
  Channel channel({.address = server->address(), .task = kSharingTask, .shared_memory = true});
  throw_if_error(channel.hello(after(seconds(20))).status());
  const auto call = [&](double value) {
    const Message request{"", {at::full({kSharedFloats}, value)}};
    return value_or_throw(
               channel.call(kSumShared, request, sharing_options({.request = true}, seconds(3))))
        .body;
  };
  EXPECT_EQ(call(1), "1048576.000000 ");
  EXPECT_EQ(call(2), "2097152.000000 ");
  EXPECT_GE(calls, 3);
  auto held = first.get_future();
  ASSERT_EQ(held.wait_for(seconds(20)), std::future_status::ready);
  ServerCall late = held.get();
  EXPECT_TRUE(late.request().tensors.at(0).equal(at::ones({kSharedFloats})))
      << "the server still sees what was sent";
  late.respond(Message{});
}

// Sends a request with any description of shared memory and returns the code of the answer.
ErrorCode send_part(const SharingServer& server, const SharedPart& part,
                    const char* method = kSumShared, const std::string& body = "",
                    std::optional<uint32_t> size = std::nullopt) {
  const std::string text = part.SerializeAsString();
  const uint32_t declared = size.value_or(text.size());
  Message message{std::string(reinterpret_cast<const char*>(&declared), 4) + text + body, {}};
  auto writer = value_or_throw(MessageWriter::make(
      {.request_id = 1, .sender = 9, .receiver = 7, .one_frame = true, .shared = true}, message));
  std::string bytes;
  for (const Piece& piece : writer.next_frame(writer.bytes_left())) bytes += piece.bytes;
  const grpc::Status status = call_raw(server.server->address(), method, bytes);
  return status.ok() ? ErrorCode::kOk : error_code(internal::from_grpc(status));
}

TEST(SharedMessage, ServersCheckEveryNumber) {
  const SharingServer server;
  const auto segment = value_or_throw(SharedSegment::create(8192));
  const auto part_of = [&](uint64_t offset, std::vector<int64_t> sizes, uint32_t dtype = 12) {
    SharedPart part;
    part.set_segment(segment->handle());
    SharedTensor& tensor = *part.add_tensors();
    tensor.set_offset(offset);
    tensor.set_dtype(dtype);
    tensor.mutable_sizes()->Add(sizes.begin(), sizes.end());
    return part;
  };
  const auto code = [&](const SharedPart& part) { return send_part(server, part); };
  const ErrorCode invalid = ErrorCode::kInvalidArgument;
  ASSERT_EQ(code(part_of(0, {2048})), ErrorCode::kOk);
  ASSERT_EQ(code(part_of(8128, {16})), ErrorCode::kOk);
  ASSERT_EQ(code(part_of(0, {0, 5})), ErrorCode::kOk);
  // Ranges that are not in the segment.
  EXPECT_EQ(code(part_of(0, {2049})), invalid);
  EXPECT_EQ(code(part_of(8128, {17})), invalid);
  EXPECT_EQ(code(part_of(8192, {1})), invalid);
  EXPECT_EQ(code(part_of(1 << 20, {1})), invalid);
  EXPECT_EQ(code(part_of(UINT64_MAX - 63, {16})), invalid);
  // Places in the middle of something.
  EXPECT_EQ(code(part_of(2, {1})), invalid);
  EXPECT_EQ(code(part_of(4, {1})), invalid) << "methods may view it as another dtype";
  EXPECT_EQ(code(part_of(1, {16}, /*dtype=*/2)), invalid);
  // Sizes that are negative or whose product overflows.
  EXPECT_EQ(code(part_of(0, {-1})), invalid);
  EXPECT_EQ(code(part_of(0, {-1, -1})), invalid);
  EXPECT_EQ(code(part_of(0, {1ll << 40, 1ll << 40})), invalid);
  EXPECT_EQ(code(part_of(0, {0, 1ll << 40, 1ll << 40})), invalid);
  EXPECT_EQ(code(part_of(0, std::vector<int64_t>(65, 1))), invalid);
  EXPECT_EQ(code(part_of(0, {1}, 250)), invalid);
  EXPECT_EQ(code(part_of(0, {1}, 1000)), invalid);
  // The places of the answer are checked in the same way.
  SharedPart places = part_of(0, {2049});
  places.mutable_places()->Swap(places.mutable_tensors());
  EXPECT_EQ(code(places), invalid);
  places.mutable_places(0)->set_offset(4);
  EXPECT_EQ(code(places), invalid);
  places.mutable_places(0)->set_sizes(0, 2047);
  EXPECT_EQ(code(places), ErrorCode::kOk) << "a slice of a larger tensor";
  places.mutable_places(0)->set_offset(2);
  EXPECT_EQ(code(places), invalid);
  // Tensors that are missing.
  SharedPart gap = part_of(0, {1});
  gap.mutable_tensors(0)->set_index(1);
  EXPECT_EQ(code(gap), invalid);
  // Descriptions and bodies that are too large.
  SharedPart many = part_of(0, {1});
  for (int i = 0; i < 70'000; ++i) many.add_places()->set_dtype(12);
  EXPECT_EQ(code(many), invalid);
  EXPECT_EQ(send_part(server, part_of(0, {1}), kSumShared, std::string((1 << 20) + 1, 'x')),
            invalid);
  // Descriptions that are cut off.
  EXPECT_EQ(send_part(server, part_of(0, {1}), kSumShared, "", 1u << 30), invalid);
  EXPECT_EQ(send_part(server, part_of(0, {1}), kSumShared, "", 3), invalid);
  // Requests and methods that do not use shared memory.
  EXPECT_EQ(send_part(server, part_of(0, {1}), kSumShared, "private"), invalid);
  EXPECT_EQ(send_part(server, part_of(0, {1}), kFillShared, "1"), invalid);
  EXPECT_EQ(send_part(server, part_of(0, {1}), kSumOnce), invalid);
  EXPECT_EQ(code(part_of(0, {2048})), ErrorCode::kOk) << "the server still works";
}

TEST(SharedMessage, ServersCheckTheHandle) {
  const SharingServer server;
  const auto segment = value_or_throw(SharedSegment::create(8192));
  const auto code = [&](const std::string& handle) {
    SharedPart part;
    part.set_segment(handle);
    SharedTensor& tensor = *part.add_tensors();
    tensor.set_dtype(12);
    tensor.add_sizes(4);
    return send_part(server, part);
  };
  EXPECT_EQ(code(segment->handle()), ErrorCode::kOk);
  EXPECT_EQ(code(""), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("/etc/passwd"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(std::string(1 << 20, 'x')), ErrorCode::kInvalidArgument);
  // Handles of other files, of other sizes and of other machines.
  const std::string pid = absl::StrCat(" ", getpid(), " ");
  EXPECT_EQ(code(absl::StrReplaceAll(segment->handle(), {{" 8192 ", " 4096 "}})),
            ErrorCode::kUnavailable);
  EXPECT_EQ(code(absl::StrReplaceAll(segment->handle(), {{" 8192 ", " 81920000 "}})),
            ErrorCode::kUnavailable);
  EXPECT_EQ(code(absl::StrReplaceAll(segment->handle(), {{pid, " 1 "}})), ErrorCode::kUnavailable);
  EXPECT_EQ(code(absl::StrReplaceAll(segment->handle(), {{boot_id(), "other"}})),
            ErrorCode::kUnavailable);
  const std::string other = value_or_throw(SharedSegment::create(8192))->handle();
  EXPECT_EQ(code(other), ErrorCode::kUnavailable) << "it is gone";
}

TEST(SegmentCache, LetsGoOfSegmentsThatTheirOwnersHaveDropped) {
  const auto cache = std::make_shared<internal::SegmentCache>(1 << 20);
  auto first = value_or_throw(SharedSegment::create(64 << 10));
  const auto second = value_or_throw(SharedSegment::create(32 << 10));
  const auto opened = value_or_throw(cache->open(first->handle()));
  EXPECT_EQ(value_or_throw(cache->open(first->handle())), opened) << "it is mapped once";
  EXPECT_EQ(cache->bytes(), 64u << 10);
  EXPECT_FALSE(opened->is_closed());
  first.reset();
  EXPECT_TRUE(opened->is_closed());
  value_or_throw(cache->open(second->handle()));
  EXPECT_EQ(cache->bytes(), 32u << 10);
  EXPECT_EQ(opened->data()[0], std::byte{0}) << "users of a segment keep it";
}

TEST(SegmentCache, KeepsToItsLimit) {
  const auto cache = std::make_shared<internal::SegmentCache>(100 << 10);
  std::vector<std::shared_ptr<SharedSegment>> segments;
  for (int i = 0; i < 5; ++i) {
    segments.push_back(value_or_throw(SharedSegment::create(40 << 10)));
    value_or_throw(cache->open(segments.back()->handle()));
    EXPECT_LE(cache->bytes(), 100u << 10);
  }
  const auto large = value_or_throw(SharedSegment::create(200 << 10));
  EXPECT_EQ(error_code(cache->open(large->handle()).status()), ErrorCode::kUnavailable);
  EXPECT_GT(cache->bytes(), 0u);
}

// Limits the address space of this process to what it uses and `more` bytes.
class AddressLimit {
 public:
  explicit AddressLimit(uint64_t more) {
    getrlimit(RLIMIT_AS, &before_);
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = before_;
    limit.rlim_cur = pages * sysconf(_SC_PAGESIZE) + more;
    setrlimit(RLIMIT_AS, &limit);
  }
  ~AddressLimit() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

TEST(SharedRegion, TakesTheMemoryOfIdleSegments) {
  constexpr uint64_t kMiB = 1 << 20;
  if (physical_memory() / 16 < 128 * kMiB) GTEST_SKIP() << "no idle segment of this size is kept";
  value_or_throw(SharedRegion::take(128 * kMiB));  // and gives it back
  const AddressLimit limit(64 * kMiB);
  const auto region = SharedRegion::take(160 * kMiB);
  EXPECT_TRUE(region.ok()) << region.status();
  EXPECT_EQ(error_code(SharedRegion::take(160 * kMiB).status()), ErrorCode::kResourceExhausted);
}

TEST(SharedRegion, LimitsTheNumberOfRegions) {
  std::vector<std::shared_ptr<SharedRegion>> regions;
  for (int i = 0; i < 200; ++i) {
    auto region = SharedRegion::take(1);
    if (!region.ok()) {
      EXPECT_EQ(error_code(region.status()), ErrorCode::kResourceExhausted);
      break;
    }
    regions.push_back(*std::move(region));
  }
  EXPECT_LE(regions.size(), 64u) << "each takes a file descriptor";
  regions.pop_back();
  EXPECT_TRUE(SharedRegion::take(1).ok());
  EXPECT_EQ(error_code(SharedRegion::take(SharedRegion::kLargest + 1).status()),
            ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace trireme
