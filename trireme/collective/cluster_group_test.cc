#include "trireme/collective/cluster_group.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/collective/call.h"
#include "trireme/collective/collective.pb.h"
#include "trireme/collective/collective_host.h"
#include "trireme/collective/group_service.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/fault_injector.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/testing/wait_until.h"

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr auto kTestLease = milliseconds(1000);
// Time in which all members must know of a failure.
constexpr auto kNamedWithin = kTestLease + seconds(1);

using FormedGroup = absl::StatusOr<std::shared_ptr<Group>>;

// Several servers in one process, each with a member of the group.
class ClusterGroupTest : public testing::Test {
 protected:
  void start_servers(int count) {
    std::vector<std::string> addresses;
    for (int i = 0; i < count; ++i) {
      ports_.push_back(value_or_throw(PortReservation::make()));
      addresses.push_back(ports_.back().address());
      tasks_.push_back({"worker", i});
    }
    spec_ = ClusterSpec{{"worker", addresses}};
    for (int i = 0; i < count; ++i) start_server(i);
  }

  void start_server(int index) {
    servers_[index] = value_or_throw(TaskServer::start(
        {.spec = spec_,
         .task = tasks_[index],
         .faults = faults_.contains(index) ? std::make_shared<FaultInjector>(1, faults_.at(index))
                                           : nullptr,
         .services = {make_collective_service}}));
  }

  std::future<FormedGroup> form(int rank, Duration timeout = seconds(20)) {
    return std::async(std::launch::async, [this, rank, timeout] {
      return form_group(
          servers_[rank]->context(),
          {.name = "test", .tasks = tasks_, .lease = lease_, .deadline = after(timeout)});
    });
  }

  void form_all() {
    std::vector<std::future<FormedGroup>> formed;
    for (size_t i = 0; i < tasks_.size(); ++i) formed.push_back(form(static_cast<int>(i)));
    for (auto& each : formed) groups_.push_back(value_or_throw(each.get()));
  }

  // Blocks until the group of a member has failed, and returns the cause.
  absl::Status failure_of(int rank, Duration timeout = kNamedWithin) {
    wait_until([&] { return !groups_[rank]->failure().ok(); }, timeout);
    return groups_[rank]->failure();
  }

  // Sends a parcel and returns the future status.
  std::future<absl::Status> send(int from, int to, Parcel parcel) {
    auto sent = std::make_shared<std::promise<absl::Status>>();
    groups_[from]->send(to, std::move(parcel),
                        [sent](const absl::Status& status) { sent->set_value(status); });
    return sent->get_future();
  }

  Duration lease_ = kTestLease;
  std::vector<PortReservation> ports_;
  std::vector<TaskId> tasks_;
  ClusterSpec spec_;
  std::map<int, std::vector<FaultRule>> faults_;  // faults of the calls of each server
  std::map<int, std::unique_ptr<TaskServer>> servers_;
  std::vector<std::shared_ptr<Group>> groups_;
};

TEST_F(ClusterGroupTest, FormsWithTheMembersOfAllRanks) {
  start_servers(3);
  form_all();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(groups_[rank]->rank(), rank);
    ASSERT_EQ(groups_[rank]->size(), 3);
    for (int other = 0; other < 3; ++other) {
      const GroupMember& member = groups_[rank]->members()[other];
      EXPECT_EQ(member.task, tasks_[other]);
      EXPECT_EQ(member.address, ports_[other].address());
      EXPECT_EQ(member.incarnation, servers_[other]->context().incarnation);
      EXPECT_EQ(member.pid, getpid());
      EXPECT_FALSE(member.boot_id.empty());
    }
  }
}

TEST_F(ClusterGroupTest, FormsWithOneMember) {
  start_servers(1);
  form_all();
  EXPECT_EQ(value_or_throw(groups_[0]->exchange("key", "a", after(seconds(5)))),
            std::vector<std::string>{"a"});
}

// A member may get the answer that forms the group before rank 0 has joined, and exchange bytes.
TEST_F(ClusterGroupTest, EarlyExchangeIsToldToAskAgain) {
  start_servers(1);
  Channel channel({.address = ports_[0].address(), .task = tasks_[0].to_string()});
  GatherRequest request;
  request.set_group_id(7);
  request.set_size(2);
  const auto ask = [&] {
    return error_code(
        channel.call(kGatherMembers, make_message(request), {.deadline = after(milliseconds(500))})
            .status());
  };
  CollectiveHost& host = *servers_[0]->context().collectives;
  host.begin_forming();
  EXPECT_EQ(ask(), ErrorCode::kUnavailable);
  host.end_forming();
  EXPECT_EQ(ask(), ErrorCode::kNotFound);
}

TEST_F(ClusterGroupTest, RejectsADescriptionOfAnotherTask) {
  start_servers(2);
  Channel channel({.address = ports_[0].address(), .task = tasks_[0].to_string(), .caller = 5});
  GatherRequest request;
  request.set_group("test");
  request.set_rank(1);
  request.set_size(2);
  request.set_wait_ms(1);
  request.set_task(tasks_[1].to_string());
  const auto ask = [&](const std::string& task, uint64_t incarnation) {
    Seat seat;
    seat.set_task(task);
    seat.set_incarnation(incarnation);
    request.set_bytes(seat.SerializeAsString());
    return error_code(
        channel.call(kGatherMembers, make_message(request), {.deadline = after(seconds(20))})
            .status());
  };
  EXPECT_EQ(ask(tasks_[0].to_string(), 5), ErrorCode::kPermissionDenied);
  EXPECT_EQ(ask(tasks_[1].to_string(), 6), ErrorCode::kPermissionDenied);
  EXPECT_EQ(ask(tasks_[1].to_string(), 5), ErrorCode::kOk);
  request.set_bytes("\xff");
  const auto unreadable =
      channel.call(kGatherMembers, make_message(request), {.deadline = after(seconds(20))});
  EXPECT_EQ(error_code(unreadable.status()), ErrorCode::kInvalidArgument);
}

TEST_F(ClusterGroupTest, ExchangesBytes) {
  start_servers(3);
  form_all();
  for (const std::string key : {"first", "second"}) {
    std::vector<std::future<absl::StatusOr<std::vector<std::string>>>> answers;
    for (int rank = 0; rank < 3; ++rank) {
      answers.push_back(std::async(std::launch::async, [this, rank, key] {
        return groups_[rank]->exchange(key, absl::StrCat(key, rank), after(seconds(10)));
      }));
    }
    for (auto& answer : answers) {
      EXPECT_EQ(value_or_throw(answer.get()),
                (std::vector<std::string>{key + "0", key + "1", key + "2"}));
    }
  }
}

TEST_F(ClusterGroupTest, SendsSmallAndLargeParcels) {
  start_servers(2);
  form_all();
  for (const int64_t elements : {1, 1000, 3 << 20}) {
    SCOPED_TRACE(elements);
    const at::Tensor sent = at::arange(elements, at::kFloat);
    auto done = send(0, 1,
                     {.sequence = 7,
                      .slot = 3,
                      .call_fingerprint = 99,
                      .call_description = "all_reduce()",
                      .payload = sent});
    Parcel parcel = value_or_throw(groups_[1]->receive(7, after(seconds(10))));
    EXPECT_TRUE(done.get().ok());
    EXPECT_EQ(parcel.call_fingerprint, 99u);
    EXPECT_EQ(parcel.call_description, "all_reduce()");
    at::Tensor received = parcel.payload;
    if (received.is_meta()) received = parcel.scattered.gather(received.sizes(), at::kFloat);
    EXPECT_TRUE(received.equal(sent));
  }
  auto empty = send(1, 0, {.sequence = 8});
  EXPECT_FALSE(value_or_throw(groups_[0]->receive(8, after(seconds(10)))).payload.defined());
  EXPECT_TRUE(empty.get().ok());
}

TEST_F(ClusterGroupTest, LeavesLargeParcelsInPieces) {
  start_servers(2);
  form_all();
  const at::Tensor sent = at::arange(3 << 20, at::kFloat);
  auto done = send(0, 1, {.sequence = 1, .payload = sent});
  const Parcel parcel = value_or_throw(groups_[1]->receive(1, after(seconds(10))));
  EXPECT_TRUE(parcel.payload.is_meta());
  EXPECT_FALSE(parcel.scattered.pieces().empty());
  EXPECT_TRUE(done.get().ok());
}

TEST_F(ClusterGroupTest, AnswersASendOnlyWhenTheParcelIsTaken) {
  start_servers(2);
  form_all();
  auto done = send(0, 1, {.sequence = 1});
  auto later = send(0, 1, {.sequence = 2});
  value_or_throw(groups_[1]->receive(2, after(seconds(10))));
  EXPECT_TRUE(later.get().ok());  // the earlier parcel has arrived before it
  EXPECT_EQ(done.wait_for(milliseconds(20)), std::future_status::timeout);
  value_or_throw(groups_[1]->receive(1, after(seconds(10))));
  EXPECT_TRUE(done.get().ok());
}

TEST_F(ClusterGroupTest, NamesTheMembersThatAreMissing) {
  start_servers(3);
  auto first = form(0, milliseconds(600)), second = form(1, milliseconds(300));
  const absl::Status status = second.get().status();
  EXPECT_EQ(error_code(status), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(status.message()),
            "the time limit passed while /job:worker/task:1 waited to join group 'test'; missing: "
            "rank 2 (/job:worker/task:2)");
  // Rank 1 has given up.
  EXPECT_THAT(std::string(first.get().status().message()),
              HasSubstr("missing: rank 1 (/job:worker/task:1), rank 2 (/job:worker/task:2)"));
}

TEST_F(ClusterGroupTest, WaitsForAMemberThatIsLate) {
  start_servers(2);
  auto early = form(1);
  // Rank 1 waits for rank 0, which waits for nobody.
  ASSERT_TRUE(wait_until([&] { return servers_[1]->context().waits().size() == 1; }, seconds(5)));
  EXPECT_EQ(servers_[1]->context().waits()[0],
            "group 'test' waits for rank 0 (/job:worker/task:0) to join");
  auto late = form(0);
  EXPECT_TRUE(late.get().ok());
  EXPECT_TRUE(early.get().ok());
  EXPECT_TRUE(servers_[1]->context().waits().empty());
}

TEST_F(ClusterGroupTest, FormsAfterAMemberWasRestartedBeforeTheGroupFormed) {
  start_servers(3);
  auto first = form(0), former = form(1, milliseconds(300));
  EXPECT_FALSE(former.get().ok());
  servers_[1].reset();
  start_server(1);
  auto second = form(1), third = form(2);
  const auto group = value_or_throw(first.get());
  EXPECT_EQ(group->members()[1].incarnation, servers_[1]->context().incarnation);
  EXPECT_TRUE(second.get().ok());
  EXPECT_TRUE(third.get().ok());
}

TEST_F(ClusterGroupTest, AFailureReachesAllMembersWithItsText) {
  start_servers(3);
  form_all();
  groups_[1]->fail(
      make_status(ErrorCode::kDataLoss, "the cat ate it", {"/job:worker/task:1", "w"}));
  for (int rank = 0; rank < 3; ++rank) {
    const absl::Status failure = failure_of(rank, milliseconds(900));
    EXPECT_EQ(error_code(failure), ErrorCode::kDataLoss);
    EXPECT_EQ(std::string(failure.message()), "the cat ate it");
    EXPECT_EQ(error_origin(failure), (Origin{"/job:worker/task:1", "w"}));
    EXPECT_TRUE(
        wait_until([&] { return groups_[rank]->stop_token().stop_requested(); }, seconds(5)));
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

TEST_F(ClusterGroupTest, AStoppedServerIsNamedOnAllOthers) {
  start_servers(4);
  form_all();
  auto pending = send(0, 3, {.sequence = 1});  // from a member that does not check rank 2
  const Time stopped = Clock::real().now();
  servers_[2].reset();
  for (const int rank : {0, 1, 3}) {
    const absl::Status failure = failure_of(rank);
    EXPECT_LT(Clock::real().now() - stopped, kNamedWithin);
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

TEST_F(ClusterGroupTest, AMemberThatDoesNotAnswerForTheLeaseIsNamedEverywhere) {
  faults_[1] = {{.peer = "/job:worker/task:2", .lose_request = 1}};  // also loses calls of Fail
  start_servers(3);
  const Time began = Clock::real().now();
  form_all();
  for (const int rank : {0, 1, 2}) {
    const absl::Status failure = failure_of(rank);
    EXPECT_EQ(error_code(failure), ErrorCode::kDeadlineExceeded);
    // Rank 2 itself learns from its neighbour that it was given up.
    EXPECT_THAT(std::string(failure.message()),
                HasSubstr("rank 2 (/job:worker/task:2) of group 'test' was lost: it has not "
                          "answered for 1.0s"));
  }
  EXPECT_GE(Clock::real().now() - began, kTestLease);
}

TEST_F(ClusterGroupTest, AMemberThatWasCutOffAdoptsTheCauseOfTheOthers) {
  // Rank 2 checks rank 0 in vain, and does not hear that rank 1 has failed the group.
  faults_[2] = {{.method = kGroupPosition, .peer = "/job:worker/task:0", .lose_request = 1}};
  faults_[1] =
      faults_[0] = {{.method = kFailGroup, .peer = "/job:worker/task:2", .lose_request = 1}};
  start_servers(3);
  form_all();
  groups_[1]->fail(make_status(ErrorCode::kDataLoss, "the cat ate it"));
  EXPECT_EQ(std::string(failure_of(2).message()), "the cat ate it");
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
  start_servers(3);
  form_all();
  groups_[1].reset();
  servers_[1].reset();
  // Rank 0 now checks rank 2, and finds it after more than a lease.
  EXPECT_FALSE(wait_until([&] { return !groups_[0]->failure().ok(); }, kTestLease * 3 / 2));
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
  EXPECT_THAT(std::string(failure_of(0, seconds(20)).message()),
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

TEST_F(ClusterGroupTest, SaysForWhomACallWaits) {
  start_servers(3);
  form_all();
  const CollectiveCall first{.tag = "a", .sequence = 1}, second{.tag = "b", .sequence = 2};
  for (const auto& group : groups_) {
    group->begin_call(first);
    group->end_call();
  }
  groups_[0]->begin_call(second);
  groups_[1]->begin_call(second);
  EXPECT_TRUE(wait_until(
      [&] {
        const auto waits = servers_[0]->context().waits();
        return waits.size() == 1 &&
               waits[0].find(
                   "call 2 of group 'test', barrier(tag 'b'), waits for rank 2 "
                   "(/job:worker/task:2), which is at call 1") == 0;
      },
      seconds(10)));
  for (const int rank : {0, 1}) groups_[rank]->end_call();
}

TEST_F(ClusterGroupTest, RejectsAListOfTasksWithoutTheTask) {
  start_servers(2);
  const absl::Status status =
      form_group(servers_[0]->context(), {.name = "test", .tasks = {tasks_[1]}}).status();
  EXPECT_EQ(error_code(status), ErrorCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/job:worker/task:0 is not in the list"));
}

}  // namespace
}  // namespace trireme::internal
