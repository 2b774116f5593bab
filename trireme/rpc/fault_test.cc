#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "trireme/rpc/answer_cache.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/fault_injector.h"
#include "trireme/rpc/server.h"

namespace trireme {
namespace {

using internal::AnswerCache;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr char kAdd[] = "/test.Test/Add";
constexpr char kRead[] = "/test.Test/Read";

class SetClock final : public Clock {
 public:
  Time now() const override { return time; }
  Time time = Time() + std::chrono::hours(1);
};

// Records the answers that waiters get.
struct RecordedAnswers {
  AnswerCache::Waiter waiter() {
    return [this](const AnswerCache::Answer& answer) {
      bodies.push_back(answer.ok() ? answer->body : std::string(answer.status().message()));
    };
  }
  std::vector<std::string> bodies;
};

TEST(AnswerCache, ARepetitionGetsTheFirstAnswer) {
  AnswerCache cache({});
  RecordedAnswers recorded;
  EXPECT_EQ(*cache.begin(1, 5, "w", recorded.waiter()), AnswerCache::Found::kNew);
  EXPECT_EQ(*cache.begin(1, 5, "w", recorded.waiter()), AnswerCache::Found::kRepetition);
  EXPECT_TRUE(recorded.bodies.empty());
  cache.finish(1, 5, Message{"first", {}});
  EXPECT_EQ(recorded.bodies, std::vector<std::string>{"first"});
  EXPECT_EQ(*cache.begin(1, 5, "w", recorded.waiter()), AnswerCache::Found::kRepetition);
  EXPECT_EQ(recorded.bodies, (std::vector<std::string>{"first", "first"}));
  // Another id or another caller is another request, in any order.
  EXPECT_EQ(*cache.begin(1, 4, "w", recorded.waiter()), AnswerCache::Found::kNew);
  EXPECT_EQ(*cache.begin(2, 5, "w", recorded.waiter()), AnswerCache::Found::kNew);
}

TEST(AnswerCache, AnotherPeerCannotRepeatARequest) {
  AnswerCache cache({});
  RecordedAnswers recorded;
  ASSERT_TRUE(cache.begin(1, 5, "/job:worker/task:0", recorded.waiter()).ok());
  cache.finish(1, 5, Message{"secret", {}});
  const auto replayed = cache.begin(1, 5, "/job:worker/task:1", recorded.waiter());
  EXPECT_EQ(error_code(replayed.status()), ErrorCode::kPermissionDenied);
  EXPECT_THAT(describe(replayed.status()), HasSubstr("was sent by /job:worker/task:1"));
  EXPECT_TRUE(recorded.bodies.empty());
}

TEST(AnswerCache, RejectsARequestWhoseAnswerWasDropped) {
  SetClock clock;
  AnswerCache cache({.answers = 2, .age = minutes(10), .callers = 2}, clock);
  RecordedAnswers recorded;
  const auto done = [&](uint64_t caller, uint64_t id) {
    const auto begun = cache.begin(caller, id, "", recorded.waiter());
    if (begun.ok() && *begun == AnswerCache::Found::kNew) cache.finish(caller, id, Message{});
    return begun.status();
  };
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_TRUE(done(1, id).ok());
  EXPECT_EQ(cache.answers(), 2u);
  EXPECT_EQ(error_code(done(1, 1)), ErrorCode::kAborted);
  EXPECT_TRUE(done(1, 2).ok());  // still stored, so answered again
  clock.time += minutes(11);
  EXPECT_EQ(error_code(done(1, 2)), ErrorCode::kAborted);
  EXPECT_TRUE(done(1, 4).ok());
  // A caller is forgotten only once no repetition of its requests can be on the way.
  EXPECT_TRUE(done(2, 1).ok());
  EXPECT_EQ(error_code(done(3, 1)), ErrorCode::kResourceExhausted);
  clock.time += minutes(11);
  EXPECT_TRUE(done(3, 1).ok());
}

TEST(AnswerCache, ACancelledRequestMayBeRepeated) {
  AnswerCache cache({});
  RecordedAnswers recorded;
  ASSERT_TRUE(cache.begin(1, 5, "", recorded.waiter()).ok());
  ASSERT_TRUE(cache.begin(1, 5, "", recorded.waiter()).ok());
  cache.finish(1, 5, absl::CancelledError(""));
  EXPECT_THAT(recorded.bodies.at(0), HasSubstr("try again"));
  EXPECT_EQ(*cache.begin(1, 5, "", recorded.waiter()), AnswerCache::Found::kNew);
}

TEST(RetryPolicy, DelaysGrowUpToTheLimitAndAreRandom) {
  const RetryPolicy policy = {.first_delay = milliseconds(100), .longest_delay = seconds(1)};
  EXPECT_EQ(policy.delay_before(1), Duration::zero());
  for (int i = 0; i < 100; ++i) {
    EXPECT_GE(policy.delay_before(2), milliseconds(50));
    EXPECT_LE(policy.delay_before(2), milliseconds(100));
    EXPECT_GE(policy.delay_before(3), milliseconds(100));
    EXPECT_LE(policy.delay_before(60), seconds(1));
  }
  EXPECT_NE(policy.delay_before(60), policy.delay_before(60));
}

TEST(FaultInjector, TheSameSeedGivesTheSameFaults) {
  const std::vector<FaultRule> rules = {
      {.method = "a", .lose_request = 0.3, .duplicate = 0.3, .delay = 0.3},
      {.peer = "p", .cut = 1}};
  const auto history = [&](uint64_t seed) {
    auto injector = std::make_shared<FaultInjector>(seed, rules);
    std::string text;
    for (int i = 0; i < 200; ++i) {
      const Fault fault = injector->decide("a", "q");
      absl::StrAppend(&text, fault.lose_request, fault.duplicate, fault.delay.count(), " ");
    }
    return text;
  };
  EXPECT_EQ(history(1), history(1));
  EXPECT_NE(history(1), history(2));
  FaultInjector injector(1, rules);
  EXPECT_TRUE(injector.decide("b", "p").cut);
  EXPECT_FALSE(injector.decide("b", "q").any());
}

TEST(FaultInjector, FaultsOccurAsOftenAsRequested) {
  FaultInjector injector(7, {{.lose_response = 0.1, .reorder = 0.5}});
  int lost = 0, reordered = 0;
  for (int i = 0; i < 10000; ++i) {
    const Fault fault = injector.decide("m", "p");
    lost += fault.lose_response;
    reordered += fault.reorder;
  }
  EXPECT_NEAR(lost, 1000, 150);
  EXPECT_NEAR(reordered, 5000, 300);
}

// Counts the calls of a method that is executed once, and of one that may be repeated.
class CountingService final : public Service {
 public:
  std::vector<Method> methods() override {
    return {{kAdd, Roles::all(), Repeats::kAnsweredOnce,
             [this](ServerCall call) {
               call.respond(Message{std::to_string(++added), {}});
             }},
            {kRead, Roles::all(), Repeats::kHarmless, [this](ServerCall call) {
               call.respond(Message{std::to_string(++read), {}});
             }}};
  }
  std::atomic<int> added = 0, read = 0;
};

class FaultTest : public testing::Test {
 protected:
  FaultTest() {
    std::vector<std::unique_ptr<Service>> services;
    services.push_back(std::make_unique<CountingService>());
    service_ = static_cast<CountingService*>(services.back().get());
    server_ = value_or_throw(
        RpcServer::start({.address = "127.0.0.1:0", .task = "/job:ps/task:0", .incarnation = 7},
                         std::move(services)));
  }

  std::unique_ptr<Channel> channel(const FaultRule& rule) {
    auto made = std::make_unique<Channel>(
        ChannelOptions{.address = server_->address(),
                       .task = "/job:ps/task:0",
                       .faults = std::make_shared<FaultInjector>(1, std::vector{rule})});
    throw_if_error(made->hello(after(seconds(10))).status());
    return made;
  }

  CallOptions with_retries(Duration attempt = milliseconds(100)) {
    return {.deadline = after(seconds(30)),
            .retry = RetryPolicy{.attempt_time = attempt, .first_delay = milliseconds(1)}};
  }

  CountingService* service_ = nullptr;
  std::unique_ptr<RpcServer> server_;
};

TEST_F(FaultTest, RetriesOvercomeEachFault) {
  int expected = 0;
  for (const FaultRule& rule :
       {FaultRule{.method = kAdd, .lose_request = 0.5},
        FaultRule{.method = kAdd, .lose_response = 0.5}, FaultRule{.method = kAdd, .duplicate = 1},
        FaultRule{.method = kAdd, .delay = 1}, FaultRule{.method = kAdd, .reorder = 0.5},
        FaultRule{.method = kAdd, .cut = 0.5}}) {
    const auto channel = this->channel(rule);
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(value_or_throw(channel->call(kAdd, {}, with_retries())).body,
                std::to_string(++expected));
    }
  }
  EXPECT_EQ(service_->added, expected);
}

TEST_F(FaultTest, WithoutRetriesALossIsAnError) {
  const auto channel = this->channel({.method = kAdd, .lose_request = 1});
  const absl::Status status =
      channel->call(kAdd, {}, {.deadline = after(milliseconds(100))}).status();
  EXPECT_EQ(error_code(status), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(service_->added, 0);
}

TEST_F(FaultTest, RetriesEndAtTheDeadlineAndAreCounted) {
  const auto channel = this->channel({.method = kRead, .lose_response = 1});
  CallOptions options = with_retries(milliseconds(20));
  options.deadline = after(milliseconds(300));
  const absl::Status status = channel->call(kRead, {}, options).status();
  EXPECT_EQ(error_code(status), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(describe(status), HasSubstr("attempts)"));
  EXPECT_GT(service_->read, 1);
}

TEST_F(FaultTest, AnswersOfTheServerAreNotRetried) {
  const auto channel = this->channel({});
  const absl::Status status = channel->call("/test.Test/None", {}, with_retries()).status();
  EXPECT_EQ(error_code(status), ErrorCode::kUnimplemented);
}

TEST_F(FaultTest, AMethodExecutedOnceRequiresAnIncarnation) {
  Channel channel({.address = server_->address()});
  EXPECT_EQ(error_code(channel.call(kAdd, {}).status()), ErrorCode::kFailedPrecondition);
  throw_if_error(channel.hello(after(seconds(10))).status());
  EXPECT_TRUE(channel.call(kAdd, {}).ok());
  EXPECT_EQ(error_code(channel.call(kAdd, {}, {.incarnation = 8}).status()),
            ErrorCode::kIncarnationChanged);
}

TEST_F(FaultTest, RetriesWaitForAServerThatIsNotUpYet) {
  const std::string address = server_->address();
  server_.reset();
  Channel channel({.address = address, .task = "/job:ps/task:0"});
  std::promise<Response> answer;
  channel.call(kRead, {}, with_retries(seconds(1)),
               [&](Response response) { answer.set_value(std::move(response)); });
  std::vector<std::unique_ptr<Service>> services;
  services.push_back(std::make_unique<CountingService>());
  server_ = value_or_throw(RpcServer::start(
      {.address = address, .task = "/job:ps/task:0", .incarnation = 8}, std::move(services)));
  EXPECT_TRUE(answer.get_future().get().ok());
}

}  // namespace
}  // namespace trireme
