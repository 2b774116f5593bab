// Client programs join, take over and leave jobs on real servers.
#include "trireme/ps/job_membership.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>

#include "trireme/base/executor.h"
#include "trireme/ps/job_list.h"
#include "trireme/ps/job_service.h"
#include "trireme/ps/jobs.pb.h"
#include "trireme/ps/test_servers.h"
#include "trireme/ps/variable_list.h"
#include "trireme/rpc/server.h"
#include "trireme/testing/manual_clock.h"
#include "trireme/testing/wait_until.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr auto kWait = seconds(30);
constexpr uint64_t kMemberWriter = 5;

class JobMembershipTest : public testing::Test {
 protected:
  explicit JobMembershipTest(VariableStoreOptions options = {}) : cluster_(2, options) {}

  // Starts a program of job "ads" and returns its client.
  std::unique_ptr<PsClient> program(const JobOptions& options = {.id = "ads"}) {
    auto client = cluster_.client();
    throw_if_error(client->join(options, after(kWait)));
    return client;
  }

  // Creates a variable with a shard on each server, which is filled with `value`.
  static PsVariable create_table(PsClient& client, double value) {
    ShardPlacer placer(client.servers(), Placement::kRoundRobin, FixedPartitioner(2));
    const auto layouts = placer.place({{"table", {2}}});
    return value_or_throw(client.create({{.layout = layouts[0], .fill = value}}))[0];
  }
  static double first_of(PsClient& client, const PsVariable& table) {
    return value_or_throw(client.pull({{table}}))[0][0].item<double>();
  }

  Channel channel_to(int server) {
    const TaskId task{"ps", server};
    return Channel({.address = cluster_.spec().address(task), .task = task.to_string()});
  }
  std::vector<ListedJob> jobs(int server) {
    Channel channel = channel_to(server);
    return value_or_throw(list_jobs(channel, after(kWait)));
  }

  TestServers cluster_;
};

// The servers' clock is moved by the test.
struct ServersClock {
  ManualClock clock_;
};
class MovedClockTest : protected ServersClock, public JobMembershipTest {
 protected:
  MovedClockTest() : JobMembershipTest({.clock = &clock_}) {}
};

// A server whose answer to Begin waits until a test has called `on_begin`. Records the requests to
// end a member.
class SlowJobServer final : public Service {
 public:
  struct State {
    Mutex mutex;
    std::function<void()> on_begin ABSL_GUARDED_BY(mutex) = [] {};
    int begins ABSL_GUARDED_BY(mutex) = 0;
    std::vector<EndMemberRequest> ends ABSL_GUARDED_BY(mutex);

    int count_begins() {
      MutexLock lock(mutex);
      return begins;
    }
    std::vector<EndMemberRequest> ended() {
      MutexLock lock(mutex);
      return ends;
    }
  };
  explicit SlowJobServer(State& state) : state_(state) {}

  std::vector<Method> methods() override {
    return {
        make_method<FindJobRequest, FindJobResponse>(
            kFindJob, Roles::all(), Repeats::kHarmless,
            [](const FindJobRequest&) { return FindJobResponse(); }),
        {kBeginJob, Roles::all(), Repeats::kHarmless,
         [this](ServerCall call) {
           pool_.submit([this, call = std::move(call)]() mutable {
             std::function<void()> on_begin;
             {
               MutexLock lock(state_.mutex);
               ++state_.begins;
               on_begin = state_.on_begin;
             }
             on_begin();
             call.respond(make_message(BeginJobResponse()));
           });
         }},
        make_method<EndMemberRequest, EndMemberResponse>(kEndMember, Roles::all(),
                                                         Repeats::kAnsweredOnce,
                                                         [this](const EndMemberRequest& end) {
                                                           MutexLock lock(state_.mutex);
                                                           state_.ends.push_back(end);
                                                           return EndMemberResponse();
                                                         }),
    };
  }

 private:
  State& state_;
  ThreadPool pool_{"slow-jobs", 1};
};

class LeavingTest : public JobMembershipTest {
 protected:
  LeavingTest() {
    std::vector<std::unique_ptr<Service>> services;
    services.push_back(std::make_unique<SlowJobServer>(state_));
    server_ = value_or_throw(
        RpcServer::start({.address = "127.0.0.1:0", .task = "/job:worker/task:0", .incarnation = 7},
                         std::move(services)));
  }
  absl::Status add_server(JobMembership& membership) {
    const auto channel = std::make_shared<Channel>(
        ChannelOptions{.address = server_->address(), .task = "/job:worker/task:0"});
    throw_if_error(channel->hello(after(kWait)).status());
    return membership.add_server(channel, after(kWait));
  }

  SlowJobServer::State state_;
  std::unique_ptr<RpcServer> server_;
};

class FreeingTest : public JobMembershipTest {
 protected:
  FreeingTest() : JobMembershipTest({.keep_after_lease = seconds(1)}) {}
};

TEST_F(JobMembershipTest, ProgramsWithoutAnIdHaveJobsOfTheirOwn) {
  const auto one = program({}), two = program({});
  EXPECT_NE(one->membership()->job().id, two->membership()->job().id);
  create_table(*one, 1);
  EXPECT_EQ(first_of(*two, create_table(*two, 2)), 2);
}

TEST_F(JobMembershipTest, ProgramsOfOneJobShareItsVariables) {
  const auto one = program(), two = program();
  EXPECT_EQ(one->membership()->job(), two->membership()->job());
  EXPECT_TRUE(two->membership()->joined());
  create_table(*one, 1);
  EXPECT_EQ(first_of(*two, create_table(*two, 2)), 1);
  EXPECT_EQ(jobs(0).at(0).members, 2u);
  EXPECT_EQ(jobs(1).at(0).members, 2u);
}

TEST_F(JobMembershipTest, ProgramsThatStartAtTheSameTimeTakePartInOneGeneration) {
  std::vector<std::future<std::unique_ptr<PsClient>>> started;
  for (int i = 0; i < 4; ++i) {
    started.push_back(std::async(std::launch::async, [this] { return program(); }));
  }
  std::vector<std::unique_ptr<PsClient>> clients;
  for (auto& each : started) clients.push_back(each.get());
  for (const auto& client : clients) EXPECT_EQ(client->membership()->job().generation, 1u);
}

TEST_F(JobMembershipTest, AProgramThatEndsInOrderLeavesNothing) {
  const auto one = program();
  create_table(*one, 1);
  one->membership()->leave();
  EXPECT_TRUE(jobs(0).empty());
  EXPECT_TRUE(jobs(1).empty());
  const auto two = program({.id = "ads", .resume = true});
  EXPECT_EQ(two->membership()->job().generation, 2u);
  EXPECT_EQ(first_of(*two, create_table(*two, 2)), 2);
}

// The program is killed, and started again at once.
TEST_F(JobMembershipTest, ASuccessorWaitsForTheLeaseAndStartsAfresh) {
  {
    const auto killed = program({.id = "ads", .lease = milliseconds(500)});
    create_table(*killed, 1);
  }  // it does not leave
  const Time start = Clock::real().now();
  const auto next = program();
  EXPECT_LT(Clock::real().now() - start, seconds(10));
  EXPECT_EQ(next->membership()->job().generation, 2u);
  EXPECT_FALSE(next->membership()->joined());
  EXPECT_EQ(first_of(*next, create_table(*next, 2)), 2);
}

TEST_F(JobMembershipTest, ASuccessorResumesIfItAsksFor) {
  const auto one = program({.id = "ads", .keep = true});
  create_table(*one, 1);
  one->membership()->leave();
  const auto two = program({.id = "ads", .resume = true});
  EXPECT_EQ(two->membership()->since(), (std::vector<uint64_t>{1, 1}));
  EXPECT_EQ(first_of(*two, create_table(*two, 2)), 1);
}

TEST_F(FreeingTest, FreesVariablesAfterTheLease) {
  {
    const auto killed = program({.id = "ads", .lease = milliseconds(500)});
    create_table(*killed, 1);
    EXPECT_EQ(jobs(1).at(0).variables, 1u);
  }
  EXPECT_TRUE(wait_until([&] { return jobs(0).empty() && jobs(1).empty(); }, kWait));
  Channel channel = channel_to(0);
  EXPECT_TRUE(value_or_throw(list_variables(channel, after(kWait))).variables.empty());
}

// A newer program takes over while the first one is frozen: it has no timer.
TEST_F(MovedClockTest, ANewerProgramFencesAnOlderOne) {
  for (const bool resume : {false, true}) {
    const uint64_t writer = kMemberWriter + (resume ? 2 : 0);  // each program has its own
    const auto old = program({.id = "ads", .timer = false});
    const PsVariable table = create_table(*old, 1);
    throw_if_error(old->begin_writer(writer));
    clock_.advance(seconds(10));
    const auto next = program({.id = "ads", .resume = resume});
    EXPECT_EQ(next->membership()->job().generation, old->membership()->job().generation + 1);
    const PsVariable theirs = create_table(*next, 1);

    const at::Tensor one = at::ones({2});
    const absl::Status push =
        old->push({{.variable = table, .values = one}}, {.id = {writer, 1, 0}});
    EXPECT_EQ(error_code(push), ErrorCode::kAborted) << describe(push);
    ShardPlacer placer(2, Placement::kRoundRobin);
    const auto late = placer.place({{"late", {1}}});
    EXPECT_EQ(error_code(old->create({{.layout = late[0]}}).status()), ErrorCode::kAborted);
    EXPECT_EQ(error_code(old->begin_writer(writer + 1)), ErrorCode::kAborted);
    EXPECT_EQ(first_of(*next, theirs), 1) << "unchanged";

    const auto ended = std::make_shared<std::promise<absl::Status>>();
    old->membership()->on_end([ended](const absl::Status& why) { ended->set_value(why); });
    EXPECT_TRUE(old->membership()->status().ok()) << "it has not asked yet";
    old->membership()->renew();
    std::future<absl::Status> future = ended->get_future();
    ASSERT_EQ(future.wait_for(kWait), std::future_status::ready);
    const absl::Status why = future.get();
    EXPECT_EQ(error_code(why), ErrorCode::kAborted);
    EXPECT_THAT(describe(why), HasSubstr("a newer program of job 'ads' has taken over"));
    EXPECT_EQ(old->membership()->explain(push), why);
    next->membership()->leave();
  }
}

TEST_F(MovedClockTest, PushesAreAcceptedOnlyWhileTheLeaseRuns) {
  const auto client = program({.id = "ads", .timer = false});
  const PsVariable table = create_table(*client, 0);
  throw_if_error(client->begin_writer(kMemberWriter));
  constexpr uint64_t kApplied = 1, kGivenUp = 2, kRenewed = 3;  // sequences
  const auto push_as = [&](uint64_t sequence) {
    return client->push({{.variable = table, .values = at::ones({2})}},
                        {.id = {kMemberWriter, sequence, 0}});
  };
  throw_if_error(push_as(kApplied));
  clock_.advance(seconds(10));
  const absl::Status late = push_as(kGivenUp);
  EXPECT_EQ(error_code(late), ErrorCode::kAborted);
  EXPECT_THAT(describe(late), HasSubstr("lease"));
  // A renewal fences what was given up meanwhile, and admits what comes later.
  client->membership()->raise_fence(kMemberWriter, kGivenUp + 1);
  EXPECT_TRUE(wait_until(
      [&] {
        client->membership()->renew();
        return push_as(kRenewed).ok();
      },
      kWait));
  EXPECT_EQ(error_code(push_as(kGivenUp)), ErrorCode::kAborted);
  EXPECT_EQ(first_of(*client, table), 2);
}

TEST_F(JobMembershipTest, RejectsAMixOfOldAndNewVariables) {
  const auto one = program({.id = "ads", .keep = true});
  create_table(*one, 1);
  one->membership()->leave();
  cluster_.start(1);
  const auto two = program({.id = "ads", .resume = true, .keep = true});
  ShardPlacer placer(2, Placement::kRoundRobin, FixedPartitioner(2));
  const auto layouts = placer.place({{"table", {2}}});
  for (int attempt = 0; attempt < 2; ++attempt) {
    const absl::Status status = two->create({{.layout = layouts[0]}}).status();
    EXPECT_EQ(error_code(status), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(describe(status), AllOf(HasSubstr("'table/part_0' on /job:ps/task:0"),
                                        HasSubstr("Missing: 'table/part_1' on /job:ps/task:1")));
  }
  two->membership()->leave();
  const auto three = program();
  EXPECT_EQ(first_of(*three, create_table(*three, 3)), 3) << "it begins afresh";
}

TEST_F(JobMembershipTest, AVariableReplacesAnEarlierOne) {
  const auto client = program();
  const PsVariable old = create_table(*client, 1);
  ShardPlacer placer(2, Placement::kRoundRobin);
  const auto layouts = placer.place({{"table", {3}}});
  const auto made =
      value_or_throw(client->create({{.layout = layouts[0], .fill = 5, .replaces = old}}));
  EXPECT_TRUE(value_or_throw(client->pull({{made[0]}}))[0].equal(at::full({3}, 5.0)));
  EXPECT_EQ(error_code(client->pull({{old}}).status()), ErrorCode::kNotFound);
  EXPECT_EQ(jobs(1).at(0).variables + jobs(0).at(0).variables, 1u) << "both shards are gone";
}

TEST_F(JobMembershipTest, DroppingAJobEndsItsPrograms) {
  const auto client = program();
  create_table(*client, 1);
  for (int server : {0, 1}) {
    Channel channel = channel_to(server);
    EXPECT_TRUE(value_or_throw(drop_job(channel, "ads", after(kWait))));
    EXPECT_FALSE(value_or_throw(drop_job(channel, "other", after(kWait))));
    EXPECT_TRUE(jobs(server).empty());
  }
  EXPECT_TRUE(wait_until([&] { return !client->membership()->status().ok(); }, kWait));
  EXPECT_THAT(describe(client->membership()->status()), HasSubstr("trireme jobs drop"));
}

TEST_F(LeavingTest, AProgramThatHasLeftBeginsNothing) {
  const auto client = program();
  client->membership()->leave();
  const absl::Status status = add_server(*client->membership());
  EXPECT_EQ(error_code(status), ErrorCode::kAborted);
  EXPECT_THAT(describe(status), HasSubstr("has left job 'ads'"));
  EXPECT_EQ(state_.count_begins(), 0);
}

TEST_F(LeavingTest, AProgramThatLeavesWhileItBeginsEndsThereToo) {
  for (const bool alone : {true, false}) {
    const auto client = program();
    const auto other = alone ? nullptr : program();
    {
      MutexLock lock(state_.mutex);
      state_.on_begin = [&] { client->membership()->leave(); };
    }
    const absl::Status status = add_server(*client->membership());
    EXPECT_EQ(error_code(status), ErrorCode::kAborted);
    EXPECT_THAT(describe(status), HasSubstr("has left job 'ads'"));
    ASSERT_FALSE(state_.ended().empty());
    const EndMemberRequest end = state_.ended().back();
    EXPECT_EQ(end.member(), client->membership()->member());
    EXPECT_TRUE(end.has_last());
    EXPECT_EQ(end.last(), alone) << "as the first server said";
  }
}

TEST_F(JobMembershipTest, ACallbackThatWasRemovedIsNotCalled) {
  const auto client = program();
  const auto removed = std::make_shared<std::atomic<bool>>(false);
  const auto ended = std::make_shared<std::promise<void>>();
  const uint64_t token =
      client->membership()->on_end([removed](const absl::Status&) { *removed = true; });
  client->membership()->on_end([ended](const absl::Status&) { ended->set_value(); });
  EXPECT_EQ(removed.use_count(), 2);
  client->membership()->remove_on_end(token);
  EXPECT_EQ(removed.use_count(), 1) << "it is destroyed";
  client->membership()->remove_on_end(token);
  Channel channel = channel_to(0);
  EXPECT_TRUE(value_or_throw(drop_job(channel, "ads", after(kWait))));
  ASSERT_EQ(ended->get_future().wait_for(kWait), std::future_status::ready);
  EXPECT_FALSE(*removed);
}

TEST_F(JobMembershipTest, RejectsInvalidOptions) {
  const auto client = cluster_.client();
  EXPECT_EQ(error_code(client->join({.id = "a b"}, after(kWait))), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_code(client->join({.id = "ads", .lease = milliseconds(1)}, after(kWait))),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace trireme
