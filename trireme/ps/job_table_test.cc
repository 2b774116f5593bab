#include "trireme/ps/job_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/testing/manual_clock.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using Outcome = JobTable::Joined::Outcome;

constexpr Duration kJobLease = seconds(3);
constexpr uint64_t kFirst = 11, kSecond = 22;  // members

class JobTableTest : public testing::Test {
 protected:
  JobTable::Joined join(uint64_t member, std::optional<Time> asked_at = std::nullopt,
                        uint64_t at_least = 0) {
    return value_or_throw(table_.join({.job = "ads",
                                       .member = member,
                                       .until = clock_.now() + kJobLease,
                                       .at_least = at_least,
                                       .asked_at = asked_at}));
  }
  // Asks for the first time, and returns the time of the answer, which does not decide anything.
  Time ask(uint64_t member) {
    EXPECT_EQ(join(member).outcome, Outcome::kUndecided);
    const Time asked_at = clock_.now();
    clock_.advance(milliseconds(1));
    return asked_at;
  }
  absl::StatusOr<JobTable::Begun> begin(uint64_t generation, uint64_t member, bool joined = false,
                                        bool resume = false) {
    return table_.begin({.job = {"ads", generation},
                         .member = member,
                         .until = clock_.now() + kJobLease,
                         .joined = joined,
                         .resume = resume});
  }
  absl::Status renew(uint64_t generation, uint64_t member) {
    return renew_late(generation, member, clock_.now());
  }
  // Renews by a request that was sent before.
  absl::Status renew_late(uint64_t generation, uint64_t member, Time sent) {
    return table_.renew({"ads", generation}, member, sent + kJobLease, sent);
  }
  // Starts a program that finds no other one, and returns its generation.
  uint64_t start(uint64_t member, bool resume = false) {
    const JobTable::Joined joined = join(member);
    EXPECT_EQ(joined.outcome, Outcome::kNew);
    throw_if_error(begin(joined.generation, member, false, resume).status());
    return joined.generation;
  }

  ManualClock clock_;
  JobTable table_{{.clock = &clock_, .keep_after_lease = minutes(5)}};
};

TEST_F(JobTableTest, ANewGenerationExceedsEveryOneThatIsKnown) {
  EXPECT_EQ(table_.find("ads").generation, 0u);
  EXPECT_EQ(join(kFirst, std::nullopt, /*at_least=*/7).generation, 8u);
  throw_if_error(begin(8, kFirst).status());
  EXPECT_EQ(table_.find("ads").generation, 8u);
  clock_.advance(kJobLease);
  EXPECT_EQ(join(kSecond, std::nullopt, /*at_least=*/2).generation, 9u);
}

TEST_F(JobTableTest, AProgramJoinsMembersThatAreAlive) {
  const uint64_t generation = start(kFirst);
  const Time asked_at = ask(kSecond);
  EXPECT_EQ(join(kSecond, asked_at).outcome, Outcome::kUndecided);
  throw_if_error(renew(generation, kFirst));
  const JobTable::Joined joined = join(kSecond, asked_at);
  EXPECT_EQ(joined.outcome, Outcome::kJoined);
  EXPECT_EQ(joined.generation, generation);
  EXPECT_FALSE(joined.began);
  // A repetition, or the same session once more.
  EXPECT_EQ(join(kSecond).outcome, Outcome::kJoined);
  EXPECT_FALSE(join(kSecond).began) << "a repetition of the request";
  EXPECT_TRUE(join(kFirst).began);
  EXPECT_EQ(table_.find("ads").members, 2);
  EXPECT_FALSE(value_or_throw(begin(generation, kSecond, /*joined=*/true)).is_new);
}

// The program was killed a moment ago. Its successor must not take its variables for those of a
// program that runs at the same time.
TEST_F(JobTableTest, AProgramDoesNotJoinMembersThatOnlyHoldALease) {
  const uint64_t generation = start(kFirst);
  const Time asked_at = ask(kSecond);
  clock_.advance(kJobLease - seconds(1));
  EXPECT_EQ(join(kSecond, asked_at).outcome, Outcome::kUndecided);
  clock_.advance(seconds(1));
  const JobTable::Joined next = join(kSecond, asked_at);
  EXPECT_EQ(next.outcome, Outcome::kNew);
  EXPECT_EQ(next.generation, generation + 1);
}

// The program was killed while its renewal was under way, and its successor starts at once.
TEST_F(JobTableTest, ARenewalShowsThatAMemberWasAliveWhenItWasSent) {
  const uint64_t generation = start(kFirst);
  clock_.advance(seconds(1));
  const Time sent = clock_.now();
  clock_.advance(seconds(1));
  const Time asked_at = ask(kSecond);
  throw_if_error(renew_late(generation, kFirst, sent));
  EXPECT_EQ(join(kSecond, asked_at).outcome, Outcome::kUndecided);
  // A peer cannot say that it sends a renewal in the future.
  throw_if_error(table_.renew({"ads", generation}, kFirst, sent + kJobLease,
                              clock_.now() + std::chrono::hours(1)));
  EXPECT_EQ(join(kSecond, asked_at).outcome, Outcome::kJoined);
  constexpr uint64_t kThird = 33;
  EXPECT_EQ(join(kThird, clock_.now()).outcome, Outcome::kUndecided);
}

TEST_F(JobTableTest, RenewalsOfALowerGenerationDoNotCount) {
  EXPECT_EQ(start(kFirst), 1u);
  const Time asked_at = ask(kSecond);
  throw_if_error(renew(1, kFirst));
  constexpr uint64_t kThird = 33;
  throw_if_error(begin(2, kThird).status());
  EXPECT_EQ(join(kSecond, asked_at).outcome, Outcome::kUndecided);
}

TEST_F(JobTableTest, ABadRequestDoesNotUseUpTheGenerations) {
  const auto join_at_least = [&](const std::string& job, uint64_t at_least) {
    return table_.join({.job = job, .member = kFirst, .until = clock_.now(), .at_least = at_least})
        .status();
  };
  for (const uint64_t generation : {JobTable::kHighestGeneration, ~uint64_t{0}}) {
    EXPECT_FALSE(join_at_least("new", generation).ok()) << generation;
  }
  EXPECT_EQ(start(kFirst), 1u);
  const uint64_t leap = JobTable::kLargestLeap + 2;
  EXPECT_EQ(error_code(join_at_least("ads", leap)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_code(begin(leap, kSecond).status()), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_code(begin(~uint64_t{0}, kSecond).status()), ErrorCode::kInvalidArgument);
  throw_if_error(renew(1, kFirst));
  clock_.advance(kJobLease);
  EXPECT_EQ(start(kSecond), 2u);
  EXPECT_EQ(value_or_throw(begin(leap, kFirst)).since, leap) << "a leap that is allowed";
}

TEST_F(JobTableTest, AJobWhoseGenerationsAreUsedUpSaysSo) {
  // A server that does not know the job cannot tell.
  throw_if_error(begin(JobTable::kHighestGeneration, kFirst).status());
  clock_.advance(kJobLease);
  const absl::Status status =
      table_.join({.job = "ads", .member = kSecond, .until = clock_.now()}).status();
  EXPECT_EQ(error_code(status), ErrorCode::kResourceExhausted);
  EXPECT_THAT(describe(status), HasSubstr("the generations of job 'ads' are used up; give the "
                                          "program another job id"));
}

TEST_F(JobTableTest, OthersWaitWhileAGenerationIsReserved) {
  EXPECT_EQ(join(kFirst).generation, 1u);
  EXPECT_EQ(join(kSecond).outcome, Outcome::kUndecided);
  EXPECT_EQ(join(kFirst).generation, 1u) << "a repetition";
  clock_.advance(JobTable::kStartTime);
  EXPECT_EQ(join(kSecond).generation, 2u);
  EXPECT_EQ(error_code(begin(1, kFirst).status()), ErrorCode::kAborted) << "it was too slow";
  // A program that gives up frees its reservation.
  table_.end({.job = {"ads", 2}, .member = kSecond});
  EXPECT_EQ(join(kFirst).generation, 3u);
}

// The leases ran out for a moment, and a program that wanted to take over died before it began.
TEST_F(JobTableTest, AReservationThatWasNeverBegunDoesNotEndAGeneration) {
  const uint64_t generation = start(kFirst);
  clock_.advance(kJobLease);
  EXPECT_EQ(join(kSecond).generation, generation + 1);
  clock_.advance(JobTable::kStartTime);
  throw_if_error(renew(generation, kFirst));
  constexpr uint64_t kThird = 33;
  const Time asked_at = ask(kThird);
  throw_if_error(renew(generation, kFirst));
  EXPECT_EQ(join(kThird, asked_at).generation, generation);
  throw_if_error(begin(generation, kThird, /*joined=*/true).status());
  EXPECT_EQ(table_.find("ads").members, 2);
}

TEST_F(JobTableTest, AHigherGenerationReplacesLowerOnes) {
  EXPECT_EQ(start(kFirst), 1u);
  throw_if_error(table_.check({"ads", 1}));
  const JobTable::Begun begun = value_or_throw(begin(4, kSecond));
  EXPECT_TRUE(begun.is_new);
  EXPECT_TRUE(begun.fresh);
  EXPECT_EQ(begun.since, 4u);
  EXPECT_EQ(table_.find("ads").members, 1);
  for (const absl::Status& status :
       {renew(1, kFirst), table_.check({"ads", 1}), begin(1, kFirst).status()}) {
    EXPECT_EQ(error_code(status), ErrorCode::kAborted);
    EXPECT_THAT(describe(status), AllOf(HasSubstr("a newer program of job 'ads' has taken over"),
                                        HasSubstr("generation 4 follows generation 1")));
  }
  EXPECT_FALSE(value_or_throw(begin(4, kSecond)).is_new) << "a repetition";
}

TEST_F(JobTableTest, AResumedGenerationKeepsTheVariables) {
  EXPECT_EQ(start(kFirst), 1u);
  const JobTable::Begun second = value_or_throw(begin(2, kSecond, false, /*resume=*/true));
  EXPECT_FALSE(second.fresh);
  EXPECT_EQ(second.since, 1u);
  const JobTable::Begun third = value_or_throw(begin(3, kFirst, false, /*resume=*/false));
  EXPECT_TRUE(third.fresh);
  EXPECT_EQ(third.since, 3u);
  // Members that join learn how it was begun.
  clock_.advance(kJobLease);
  const uint64_t fourth = start(kFirst, /*resume=*/true);
  const Time asked_at = ask(kSecond);
  throw_if_error(renew(fourth, kFirst));
  EXPECT_TRUE(join(kSecond, asked_at).resumed);
}

TEST_F(JobTableTest, RejectsMembersOfAGenerationThatTheServerHasLost) {
  const absl::Status status = begin(5, kFirst, /*joined=*/true).status();
  EXPECT_EQ(error_code(status), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(describe(status), HasSubstr("this server does not have generation 5 of job 'ads'"));
}

TEST_F(JobTableTest, AMemberWhoseLeaseHasRunOutMayReturn) {
  const uint64_t generation = start(kFirst);
  clock_.advance(minutes(4));
  EXPECT_EQ(table_.find("ads").members, 0);
  throw_if_error(renew(generation, kFirst));
  EXPECT_EQ(table_.find("ads").members, 1);
  EXPECT_EQ(error_code(renew(generation, kSecond)), ErrorCode::kAborted) << "it is not a member";
}

TEST_F(JobTableTest, ARenewalNeverShortensALease) {
  const uint64_t generation = start(kFirst);
  throw_if_error(renew_late(generation, kFirst, clock_.now() - kJobLease));
  clock_.advance(kJobLease - seconds(1));
  EXPECT_EQ(table_.find("ads").members, 1);
}

TEST_F(JobTableTest, TheLastMemberEndsTheJob) {
  const uint64_t generation = start(kFirst);
  throw_if_error(begin(generation, kSecond, /*joined=*/true).status());
  EXPECT_FALSE(table_.end({.job = {"ads", generation}, .member = kFirst}).last);
  const JobTable::Ended ended = table_.end({.job = {"ads", generation}, .member = kSecond});
  EXPECT_TRUE(ended.last);
  EXPECT_TRUE(ended.frees);
  EXPECT_TRUE(table_.find("ads").ended);
  EXPECT_EQ(table_.find("ads").since, 0u);
  EXPECT_EQ(error_code(renew(generation, kFirst)), ErrorCode::kAborted);
  EXPECT_TRUE(table_.list().empty());
  EXPECT_EQ(start(kFirst), generation + 1);
}

TEST_F(JobTableTest, AServerWithoutTheCounterEndsAJobOnlyIfTold) {
  const uint64_t generation = start(kFirst);
  // Another member is on its way from the counter to this server.
  EXPECT_FALSE(table_.end({.job = {"ads", generation}, .member = kFirst, .last = false}).frees);
  throw_if_error(begin(generation, kSecond, /*joined=*/true).status());
  EXPECT_TRUE(table_.end({.job = {"ads", generation}, .member = kSecond, .last = true}).frees);
}

TEST_F(JobTableTest, AJobDoesNotEndWhileAMemberMayReturn) {
  const uint64_t generation = start(kFirst);
  throw_if_error(begin(generation, kSecond, /*joined=*/true).status());
  clock_.advance(kJobLease);  // the first one is cut off
  EXPECT_FALSE(table_.end({.job = {"ads", generation}, .member = kSecond}).last);
  throw_if_error(renew(generation, kFirst));
}

TEST_F(JobTableTest, KeepsVariablesIfAMemberAsksForIt) {
  const uint64_t generation = start(kFirst);
  const JobTable::Ended ended =
      table_.end({.job = {"ads", generation}, .member = kFirst, .keep = true});
  EXPECT_TRUE(ended.last);
  EXPECT_FALSE(ended.frees);
  ASSERT_EQ(table_.list().size(), 1u);
  EXPECT_EQ(table_.list()[0].freed_in, minutes(5));
  EXPECT_EQ(value_or_throw(begin(generation + 1, kSecond, false, /*resume=*/true)).since,
            generation);
}

TEST_F(JobTableTest, FreesVariablesSomeMinutesAfterTheLastLease) {
  const uint64_t generation = start(kFirst);
  clock_.advance(kJobLease + minutes(5) - seconds(1));
  EXPECT_TRUE(table_.expire().empty());
  EXPECT_EQ(table_.list()[0].freed_in, seconds(1));
  clock_.advance(seconds(1));
  EXPECT_EQ(table_.expire(), std::vector<std::string>{"ads"});
  EXPECT_TRUE(table_.expire().empty());
  EXPECT_EQ(error_code(renew(generation, kFirst)), ErrorCode::kAborted);
  EXPECT_EQ(table_.find("ads").generation, generation) << "the number is remembered";
}

TEST_F(JobTableTest, ForgetsSilentMembersOfALivingJob) {
  const uint64_t generation = start(kFirst);
  throw_if_error(begin(generation, kSecond, /*joined=*/true).status());
  for (int i = 0; i < 400; ++i) {
    clock_.advance(seconds(1));
    throw_if_error(renew(generation, kFirst));
    EXPECT_TRUE(table_.expire().empty());
  }
  EXPECT_EQ(error_code(renew(generation, kSecond)), ErrorCode::kAborted);
  EXPECT_TRUE(table_.end({.job = {"ads", generation}, .member = kFirst}).last);
}

TEST_F(JobTableTest, DropsAJob) {
  EXPECT_FALSE(table_.drop("ads"));
  const uint64_t generation = start(kFirst);
  EXPECT_TRUE(table_.drop("ads"));
  EXPECT_FALSE(table_.drop("ads")) << "nothing is left";
  const absl::Status status = renew(generation, kFirst);
  EXPECT_EQ(error_code(status), ErrorCode::kAborted);
  EXPECT_THAT(describe(status), HasSubstr("trireme jobs drop"));
  EXPECT_EQ(start(kSecond), generation + 1);
}

TEST_F(JobTableTest, RemembersABoundedNumberOfJobs) {
  const auto run = [&](const std::string& job) {
    const auto joined = table_.join({.job = job, .member = kFirst, .until = clock_.now()});
    if (!joined.ok()) return joined.status();
    const JobKey key{job, joined->generation};
    return table_.begin({.job = key, .member = kFirst, .until = clock_.now() + kJobLease}).status();
  };
  throw_if_error(run("first"));
  table_.end({.job = {"first", 1}, .member = kFirst});
  for (size_t i = 1; i < JobTable::kMostJobs; ++i) throw_if_error(run(absl::StrCat("job", i)));
  throw_if_error(run("takes-the-place-of-the-first"));
  EXPECT_EQ(table_.find("first").generation, 0u);
  EXPECT_EQ(error_code(run("one-too-many")), ErrorCode::kResourceExhausted);
}

TEST_F(JobTableTest, RejectsInvalidIds) {
  for (const std::string id : {"", "a/b", "a b", "ä"}) {
    const absl::Status status =
        table_.join({.job = id, .member = kFirst, .until = clock_.now()}).status();
    EXPECT_EQ(error_code(status), ErrorCode::kInvalidArgument) << id;
  }
  throw_if_error(check_job_id("Ads_2.1-b"));
  EXPECT_FALSE(check_job_id(std::string(129, 'a')).ok());
}

}  // namespace
}  // namespace trireme
