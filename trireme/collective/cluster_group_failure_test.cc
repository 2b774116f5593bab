// Groups end for all members, with a cause that names the member that was lost or has left.
#include <gmock/gmock.h>

#include <algorithm>

#include "trireme/collective/call.h"
#include "trireme/collective/cluster_group_test.h"
#include "trireme/testing/wait_until.h"

namespace trireme::internal {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

// Health checks are lost, since they would carry the failure too.
TEST_F(ClusterGroupTest, AFailureReachesAllMembersWithItsText) {
  lease_ = seconds(60);
  for (int rank = 0; rank < 3; ++rank) {
    faults_[rank] = {{.method = kGroupPosition, .lose_request = 1}};
  }
  start_servers(3);
  form_all();
  for (const int rank : {0, 2}) connect(1, rank);
  groups_[1]->fail(
      make_status(ErrorCode::kDataLoss, "the cat ate it", {"/job:worker/task:1", "w"}));
  for (int rank = 0; rank < 3; ++rank) {
    const absl::Status failure = failure_of(rank, seconds(5));
    EXPECT_EQ(error_code(failure), ErrorCode::kDataLoss);
    EXPECT_EQ(std::string(failure.message()), "the cat ate it");
    EXPECT_EQ(error_origin(failure), (Origin{"/job:worker/task:1", "w"}));
    EXPECT_TRUE(
        wait_until([&] { return groups_[rank]->stop_token().stop_requested(); }, kPatience));
  }
  // Later parcels and exchanges fail with the cause.
  EXPECT_EQ(std::string(send(0, 1, {.sequence = 1}).get().message()), "the cat ate it");
  EXPECT_EQ(std::string(groups_[2]->receive(1, after(seconds(5))).status().message()),
            "the cat ate it");
  EXPECT_EQ(std::string(groups_[2]->exchange("k", "", after(seconds(5))).status().message()),
            "the cat ate it");
}

TEST_F(ClusterGroupTest, AFailureEndsSendsAndExchangesUnderWay) {
  start_servers(3);
  form_all();
  auto sent = send(0, 1, {.sequence = 1});
  auto exchanged = std::async(std::launch::async, [this] {
    return groups_[1]->exchange("k", "", after(seconds(20))).status();
  });
  groups_[2]->fail(make_status(ErrorCode::kDataLoss, "the cat ate it"));
  EXPECT_EQ(std::string(sent.get().message()), "the cat ate it");
  EXPECT_EQ(std::string(exchanged.get().message()), "the cat ate it");
}

// Nobody waits for the lease, since the address of the server refuses connections.
TEST_F(ClusterGroupTest, AStoppedServerIsNamedOnAllOthers) {
  start_servers(4);
  form_all();
  auto pending = send(0, 3, {.sequence = 1});  // from a member that does not check rank 2
  servers_[2].reset();
  const Time stopped = Clock::real().now();
  for (const int rank : {0, 1, 3}) {
    const absl::Status failure = failure_of(rank);
    EXPECT_LT(Clock::real().now() - stopped, lease_ / 2);
    EXPECT_THAT(std::string(failure.message()),
                HasSubstr("rank 2 (/job:worker/task:2) of group 'test' was lost: "));
    EXPECT_EQ(error_origin(failure).task, "/job:worker/task:2");
  }
  EXPECT_THAT(std::string(pending.get().message()), HasSubstr("rank 2 (/job:worker/task:2)"));
}

TEST_F(ClusterGroupTest, ASendToAStoppedServerNamesIt) {
  start_servers(3);
  form_all();
  auto sent = send(0, 2, {.sequence = 1});  // rank 1 checks rank 2
  servers_[2].reset();
  EXPECT_THAT(std::string(sent.get().message()), HasSubstr("rank 2 (/job:worker/task:2)"));
  EXPECT_EQ(error_origin(failure_of(1)).task, "/job:worker/task:2");
}

// All members know of it after the lease and at most a second more, unless the machine has other
// work, so the fastest of several attempts counts. The lease is long enough that other members
// answer even then.
TEST_F(ClusterGroupTest, AMemberThatDoesNotAnswerForTheLeaseIsNamedEverywhere) {
  lease_ = seconds(3);
  faults_[1] = {{.peer = "/job:worker/task:2", .lose_request = 1}};  // also loses calls of Fail
  start_servers(3);
  const Duration promised = lease_ + seconds(1);
  Duration fastest = Duration::max();
  for (int attempt = 0; attempt < 4 && fastest > promised; ++attempt) {
    const Time began = Clock::real().now();
    form_again();
    const Time formed = Clock::real().now();
    for (const int rank : {0, 1, 2}) {
      const absl::Status failure = failure_of(rank);
      EXPECT_EQ(error_code(failure), ErrorCode::kDeadlineExceeded);
      // Rank 2 itself learns from its neighbour that it was given up.
      EXPECT_THAT(std::string(failure.message()),
                  HasSubstr("rank 2 (/job:worker/task:2) of group 'test' was lost: it has not "
                            "answered for 3.0s"));
    }
    const Time named = Clock::real().now();
    EXPECT_GE(named - began, lease_);
    fastest = std::min(fastest, named - formed);
  }
  EXPECT_LE(fastest, promised);
}

// Rank 2 asks rank 1 before it blames rank 0, but soon stops waiting for its answer. The answer may
// be later than that if the machine has other work, so one of several attempts must succeed.
TEST_F(ClusterGroupTest, AMemberThatWasCutOffAdoptsTheCauseOfTheOthers) {
  lease_ = kTestLease;
  // Rank 2 checks rank 0 in vain, and does not hear that rank 1 has failed the group.
  faults_[2] = {{.method = kGroupPosition, .peer = "/job:worker/task:0", .lose_request = 1}};
  faults_[1] =
      faults_[0] = {{.method = kFailGroup, .peer = "/job:worker/task:2", .lose_request = 1}};
  start_servers(3);
  std::string cause;
  for (int attempt = 0; attempt < 5 && cause != "the cat ate it"; ++attempt) {
    form_again();
    connect(2, 1);
    groups_[1]->fail(make_status(ErrorCode::kDataLoss, "the cat ate it"));
    cause = std::string(failure_of(2).message());
  }
  EXPECT_EQ(cause, "the cat ate it");
}

TEST_F(ClusterGroupTest, ARestartedMemberFailsTheOldGroupAndANewOneForms) {
  start_servers(3);
  form_all();
  servers_[1].reset();
  start_server(1);
  auto second = form(1);
  for (const int rank : {0, 2}) {
    EXPECT_THAT(std::string(failure_of(rank).message()),
                HasSubstr("rank 1 (/job:worker/task:1) of group 'test' was lost"));
  }
  auto first = form(0), third = form(2);
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE(second.get().ok());
  EXPECT_TRUE(third.get().ok());
}

TEST_F(ClusterGroupTest, MembersThatLeaveAreNotLost) {
  lease_ = kTestLease;
  start_servers(3);
  form_all();
  groups_[1].reset();
  servers_[1].reset();
  // Rank 0 now checks rank 2, and finds it after more than a lease.
  EXPECT_FALSE(wait_until([&] { return !groups_[0]->failure().ok(); }, lease_ * 3 / 2));
  EXPECT_TRUE(groups_[2]->failure().ok());
  groups_[2].reset();
  EXPECT_TRUE(groups_[0]->failure().ok());
}

// The last check of a member that has left may still be in flight, for as long as the lease.
TEST_F(ClusterGroupTest, TheNextNeighbourIsCheckedAsSoonAsOneHasLeft) {
  faults_[0] = {{.method = kGroupPosition, .peer = "/job:worker/task:1", .lose_request = 1}};
  lease_ = seconds(60);
  start_servers(3);
  form_all();
  groups_[1].reset();
  servers_[2].reset();
  EXPECT_THAT(std::string(failure_of(0).message()),
              HasSubstr("rank 2 (/job:worker/task:2) of group 'test' was lost"));
}

TEST_F(ClusterGroupTest, ACallWithAMemberThatHasLeftFails) {
  start_servers(3);
  form_all();
  const CollectiveCall first{.tag = "a", .sequence = 1}, second{.tag = "b", .sequence = 2};
  for (const auto& group : groups_) group->begin_call(first);
  for (const int rank : {1, 2}) groups_[rank]->end_call();
  groups_[1].reset();
  // Rank 1 has completed the call that rank 0 still makes.
  EXPECT_TRUE(groups_[0]->failure().ok());
  groups_[0]->end_call();
  groups_[0]->begin_call(second);
  for (const int rank : {0, 2}) {
    EXPECT_THAT(std::string(failure_of(rank).message()),
                HasSubstr("rank 1 (/job:worker/task:1) left the group 'test'"));
  }
  groups_[0]->end_call();
}

TEST_F(ClusterGroupTest, ACallUnderWayFailsWhenAMemberLeaves) {
  start_servers(2);
  form_all();
  const CollectiveCall call{.tag = "a", .sequence = 1};
  groups_[0]->begin_call(call);
  groups_[1].reset();
  EXPECT_THAT(std::string(failure_of(0).message()), HasSubstr("left the group 'test'"));
  groups_[0]->end_call();
}

}  // namespace
}  // namespace trireme::internal
