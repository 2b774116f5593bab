// Masters join jobs on behalf of sessions.
#include "trireme/ps/session_jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/peer_clock.h"
#include "trireme/ps/job_list.h"
#include "trireme/ps/job_service.h"
#include "trireme/ps/jobs.pb.h"
#include "trireme/ps/test_servers.h"
#include "trireme/testing/manual_clock.h"
#include "trireme/testing/wait_until.h"

namespace trireme {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr auto kSessionWait = seconds(30);
constexpr uint64_t kSession = 5, kStranger = 9;  // members

class SessionJobsTest : public testing::Test {
 protected:
  // Joins the job on behalf of the session, whose client knows this generation.
  absl::StatusOr<std::shared_ptr<SessionJob>> join(uint64_t generation) {
    return join_session_job(cluster_.context(0),
                            {.id = "ads",
                             .resume = generation != 0,
                             .session = kSession,
                             .generation = generation,
                             .sent = Clock::real().now()},
                            after(kSessionWait));
  }
  // Makes a call of another program to a server.
  template <typename Answer, typename Request>
  Answer call(int server, const char* method, const Request& request) {
    const TaskId task{"ps", server};
    Channel channel({.address = cluster_.spec().address(task), .task = task.to_string()});
    throw_if_error(channel.hello(after(kSessionWait)).status());
    return value_or_throw(parse_body<Answer>(value_or_throw(
        channel.call(method, make_message(request), {.deadline = after(kSessionWait)}))));
  }
  JoinJobResponse ask_to_join(const JoinJobRequest& request) {
    return call<JoinJobResponse>(0, kJoinJob, request);
  }
  // Begins a generation at a server on behalf of another program.
  void begin_stranger(int server, uint64_t generation) {
    BeginJobRequest request;
    request.set_job("ads");
    request.set_generation(generation);
    request.set_member(kStranger);
    request.set_lease_until_ms(to_clock_milliseconds(clock_.now() + seconds(3)));
    call<BeginJobResponse>(server, kBeginJob, request);
  }
  std::vector<ListedJob> jobs(int server) {
    const TaskId task{"ps", server};
    Channel channel({.address = cluster_.spec().address(task), .task = task.to_string()});
    return value_or_throw(list_jobs(channel, after(kSessionWait)));
  }

  ManualClock clock_;
  TestServers cluster_{2, {.clock = &clock_}};
};

// The lease ran out at the master, and two renewals of the client both join the job.
TEST_F(SessionJobsTest, ASessionThatJoinsTwiceStaysInItsGeneration) {
  EXPECT_EQ(value_or_throw(join(0))->generation(), 1u);
  clock_.advance(seconds(10));
  const auto first = value_or_throw(join(1));
  EXPECT_EQ(first->generation(), 2u);
  const auto second = value_or_throw(join(1));
  EXPECT_EQ(second->generation(), 2u);
  EXPECT_EQ(jobs(0).at(0).generation, 2u);
  EXPECT_EQ(jobs(0).at(0).members, 1u);
  throw_if_error(first->begin({"ps", 1}, cluster_.context(1).incarnation, after(kSessionWait)));
}

TEST_F(SessionJobsTest, ASessionDoesNotReturnAfterAnotherProgramHasTakenOver) {
  EXPECT_EQ(value_or_throw(join(0))->generation(), 1u);
  begin_stranger(0, 2);
  clock_.advance(seconds(10));
  const absl::Status status = join(1).status();
  EXPECT_EQ(error_code(status), ErrorCode::kAborted);
  EXPECT_THAT(describe(status), HasSubstr("a newer program of job 'ads' has taken over"));
}

// The answer to the session's first request is lost. A repetition must not make it the session's
// own generation.
TEST_F(SessionJobsTest, ASessionThatAsksAgainDoesNotJoinAnotherProgram) {
  EXPECT_EQ(value_or_throw(join(0))->generation(), 1u);
  clock_.advance(seconds(10));
  begin_stranger(0, 2);
  JoinJobRequest request;
  request.set_job("ads");
  request.set_member(kSession);
  request.set_lease_until_ms(to_clock_milliseconds(clock_.now() + seconds(3)));
  request.set_asked_ms(to_clock_milliseconds(clock_.now()));
  clock_.advance(std::chrono::milliseconds(10));
  RenewJobRequest renewal;
  renewal.set_job("ads");
  renewal.set_generation(2);
  renewal.set_member(kStranger);
  renewal.set_lease_until_ms(to_clock_milliseconds(clock_.now() + seconds(3)));
  renewal.set_sent_ms(to_clock_milliseconds(clock_.now()));
  call<RenewJobResponse>(0, kRenewJob, renewal);
  EXPECT_EQ(ask_to_join(request).outcome(), JoinJobResponse::JOINED);
  const absl::Status status = join(1).status();
  EXPECT_EQ(error_code(status), ErrorCode::kAborted);
  EXPECT_THAT(describe(status), HasSubstr("a newer program of job 'ads' has taken over"));
}

// The client was killed while its renewal was under way to the master. The test moves the servers'
// clock by less than the time since then.
TEST_F(SessionJobsTest, ARenewalThatTheClientSentLongAgoDoesNotShowThatItIsAlive) {
  const auto session = value_or_throw(join(0));
  const Time killed = Clock::real().now() - seconds(20);
  JoinJobRequest request;
  request.set_job("ads");
  request.set_member(kStranger);
  request.set_lease_until_ms(to_clock_milliseconds(clock_.now() + seconds(3)));
  const JoinJobResponse first = ask_to_join(request);
  EXPECT_EQ(first.outcome(), JoinJobResponse::UNDECIDED);
  request.set_asked_ms(first.clock_ms());
  clock_.advance(seconds(1));
  const auto renewals = [&] {
    return cluster_.context(0).metrics.counters().at("rpc_server/trireme.Jobs/Renew/calls");
  };
  for (int i = 0; i < 3; ++i) {
    const uint64_t before = renewals();
    session->renew(killed);
    ASSERT_TRUE(wait_until([&] { return renewals() > before; }, kSessionWait));
    EXPECT_EQ(ask_to_join(request).outcome(), JoinJobResponse::UNDECIDED);
  }
  // The master learns the server's clock from the answers.
  EXPECT_TRUE(wait_until(
      [&] {
        session->renew(Clock::real().now());
        return ask_to_join(request).outcome() == JoinJobResponse::JOINED;
      },
      kSessionWait));
}

// The second server was silent when the session joined, and knows of a later generation.
TEST_F(SessionJobsTest, ATaskThatKnowsAGenerationThatIsOverDoesNotBlameANewerProgram) {
  const auto session = value_or_throw(join(0));
  begin_stranger(1, 7);
  const auto begin = [&] {
    return session->begin({"ps", 1}, cluster_.context(1).incarnation, after(kSessionWait));
  };
  const absl::Status newer = begin();
  EXPECT_EQ(error_code(newer), ErrorCode::kAborted);
  EXPECT_THAT(describe(newer), HasSubstr("a newer program of job 'ads' has taken over"));
  clock_.advance(seconds(10));
  const absl::Status over = begin();
  EXPECT_EQ(error_code(over), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(describe(over),
              AllOf(HasSubstr("/job:ps/task:1"), HasSubstr("did not answer when generation 1"),
                    HasSubstr("knows generation 7"), HasSubstr("open the session again")));
}

}  // namespace
}  // namespace trireme
