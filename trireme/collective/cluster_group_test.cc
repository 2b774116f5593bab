// Groups form, and carry bytes and parcels. cluster_group_failure_test.cc tests how they end.
#include "trireme/collective/cluster_group_test.h"

#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "trireme/collective/call.h"
#include "trireme/collective/collective.pb.h"
#include "trireme/collective/collective_host.h"
#include "trireme/rpc/channel.h"
#include "trireme/testing/wait_until.h"

namespace trireme::internal {

absl::Status ClusterGroupTest::failure_of(int rank, Duration timeout) {
  wait_until([&] { return !groups_[rank]->failure().ok(); }, timeout);
  return groups_[rank]->failure();
}

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

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
        channel.call(kGatherMembers, make_message(request), {.deadline = after(kPatience)})
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
  auto first = form(0, seconds(3)), second = form(1, seconds(1));
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
  ASSERT_TRUE(wait_until([&] { return servers_[1]->context().waits().size() == 1; }, kPatience));
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
      kPatience));
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
