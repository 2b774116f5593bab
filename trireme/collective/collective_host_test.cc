#include "trireme/collective/collective_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A group of two members that keeps what it is told.
class RecordingGroup final : public HostedGroup {
 public:
  uint64_t id() const override { return 7; }
  const std::string& name() const override { return name_; }
  const std::vector<GroupMember>& members() const override { return members_; }
  void deliver(Parcel parcel) override { mailbox_.deliver(std::move(parcel)); }
  GatherTable& exchanges() override { return *exchanges_; }
  void adopt_failure(const absl::Status& cause) override { failure_ = cause; }
  void fail(const absl::Status& cause) override { failure_ = cause; }
  void member_left(int, uint64_t) override {}
  GroupPosition position() const override {
    return {.sequence = 3, .call = "barrier()", .waits_for = "rank 1", .failure = failure_};
  }

  Mailbox& mailbox() { return mailbox_; }

 private:
  const std::string name_ = "test";
  const std::vector<GroupMember> members_ = {{.task = {"worker", 0}, .incarnation = 10},
                                             {.task = {"worker", 1}, .incarnation = 11}};
  const std::shared_ptr<GatherTable> exchanges_ = std::make_shared<GatherTable>();
  Mailbox mailbox_;
  absl::Status failure_;
};

class CollectiveHostTest : public testing::Test {
 protected:
  // Delivers a parcel of rank 1; status_ then has the result, or nullopt while it waits.
  void deliver(uint64_t incarnation = 11, const std::string& task = "") {
    status_.reset();
    host_.deliver(7, incarnation, task,
                  {.from = 1, .sequence = 1, .on_taken = [this](const absl::Status& status) {
                     status_ = status;
                   }});
  }
  bool has_arrived() {
    return group_->mailbox().take(1, Clock::real().now()).ok() && status_->ok();
  }

  std::shared_ptr<RecordingGroup> group_ = std::make_shared<RecordingGroup>();
  std::optional<absl::Status> status_;
  CollectiveHost host_;
};

TEST_F(CollectiveHostTest, DeliversToTheGroup) {
  ASSERT_TRUE(host_.add(group_).ok());
  deliver();
  EXPECT_FALSE(status_.has_value());
  EXPECT_TRUE(has_arrived());
}

TEST_F(CollectiveHostTest, RejectsParcelsOfOtherSenders) {
  ASSERT_TRUE(host_.add(group_).ok());
  deliver(10);
  EXPECT_EQ(error_code(*status_), ErrorCode::kPermissionDenied);
  deliver(11, "/job:worker/task:0");
  EXPECT_EQ(error_code(*status_), ErrorCode::kPermissionDenied);
  deliver(11, "/job:worker/task:1");
  EXPECT_TRUE(has_arrived());
}

TEST_F(CollectiveHostTest, KeepsParcelsWhileTheGroupForms) {
  host_.begin_forming();
  deliver();
  EXPECT_FALSE(status_.has_value());
  ASSERT_TRUE(host_.add(group_).ok());
  host_.end_forming();
  EXPECT_TRUE(has_arrived());
}

TEST_F(CollectiveHostTest, RejectsParcelsOfGroupsThatDoNotForm) {
  host_.begin_forming();
  deliver();
  EXPECT_FALSE(status_.has_value());
  host_.end_forming();
  EXPECT_EQ(error_code(*status_), ErrorCode::kAborted);
  deliver();
  EXPECT_EQ(error_code(*status_), ErrorCode::kNotFound);
}

TEST_F(CollectiveHostTest, RemembersTheCauseOfAGroupThatHasEnded) {
  ASSERT_TRUE(host_.add(group_).ok());
  host_.remove(7, {.failure = make_status(ErrorCode::kDataLoss, "gone")});
  deliver();
  EXPECT_EQ(error_code(*status_), ErrorCode::kDataLoss);
  EXPECT_EQ(error_code(value_or_throw(host_.position(7)).failure), ErrorCode::kDataLoss);
  EXPECT_EQ(error_code(host_.position(8).status()), ErrorCode::kNotFound);
}

TEST_F(CollectiveHostTest, FailsTheGroupOfAMemberThatWasRestarted) {
  ASSERT_TRUE(host_.add(group_).ok());
  const auto join = [&](const std::string& task, uint64_t incarnation) {
    host_.form("test", {.rank = 1, .size = 2, .ticket = 1}, task, incarnation, [](const auto&) {});
    return group_->position().failure;
  };
  EXPECT_TRUE(join("/job:worker/task:1", 11).ok());
  // A task that claims the rank of another one does not end the group.
  EXPECT_TRUE(join("/job:worker/task:2", 12).ok());
  EXPECT_THAT(std::string(join("/job:worker/task:1", 12).message()),
              HasSubstr("rank 1 (/job:worker/task:1) of group 'test' was lost: the task was "
                        "restarted"));
}

TEST_F(CollectiveHostTest, ListsWaits) {
  ASSERT_TRUE(host_.add(group_).ok());
  host_.note_wait(this, "group 'other' waits for rank 1 to join");
  EXPECT_THAT(host_.waits(),
              ElementsAre("group 'other' waits for rank 1 to join",
                          HasSubstr("call 3 of group 'test', barrier(), waits for rank 1 (")));
  host_.note_wait(this, "");
  host_.close();
  EXPECT_THAT(host_.waits(), ElementsAre("group 'test' has failed: the task's server was stopped"));
}

}  // namespace
}  // namespace trireme::internal
