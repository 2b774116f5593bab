#include "trireme/runtime/master.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>

#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr uint64_t kJoining = 5;  // a session

class FakeSessionJob final : public SessionJob {
 public:
  uint64_t generation() const override { return 3; }
  absl::Status begin(const TaskId&, uint64_t, Time) override { return absl::OkStatus(); }
  void renew(Time sent) override { renewals.push_back(sent); }
  void leave() override { left = true; }

  std::vector<Time> renewals;
  bool left = false;
};

class MasterTest : public testing::Test {
 protected:
  MasterTest() {
    context_.spec = {{"worker", {"127.0.0.1:1"}}};
    context_.task = {"worker", 0};
    context_.join_job = [this](const SessionJobOptions&, Time) {
      ++joins_;
      on_join_();
      return job_;
    };
  }
  // Opens a session of a job, as a request does which finds this part of it in the job.
  absl::StatusOr<uint64_t> open(std::shared_ptr<SessionJob> member = nullptr, Time sent = {}) {
    return master_->open_session(kJoining,
                                 {.container = "ads",
                                  .job = {.id = "ads", .session = kJoining, .sent = sent},
                                  .member = std::move(member)},
                                 after(seconds(20)));
  }

  TaskContext context_;
  PeerChannels channels_{context_};
  InlineExecutor executor_;
  const std::shared_ptr<Worker> worker_ = std::make_shared<Worker>(context_, channels_, executor_);
  const std::shared_ptr<Master> master_ =
      std::make_shared<Master>(context_, channels_, worker_, executor_);
  const std::shared_ptr<FakeSessionJob> job_ = std::make_shared<FakeSessionJob>();
  std::function<void()> on_join_ = [] {};
  std::atomic<int> joins_ = 0;
};

// The server that holds the counter of generations may be silent for long, and the client renews
// its session meanwhile.
TEST_F(MasterTest, OnlyOneRequestOfASessionJoinsItsJobAtATime) {
  std::promise<void> joining, proceed;
  on_join_ = [&] {
    joining.set_value();
    proceed.get_future().wait_for(seconds(20));
  };
  auto first = std::async(std::launch::async, [&] { return open(); });
  ASSERT_EQ(joining.get_future().wait_for(seconds(20)), std::future_status::ready);
  EXPECT_EQ(error_code(open().status()), ErrorCode::kUnavailable);
  EXPECT_EQ(master_->job_of(kJoining), nullptr);
  proceed.set_value();
  EXPECT_EQ(value_or_throw(first.get()), 3u);
  EXPECT_EQ(master_->job_of(kJoining), job_);
  // A request that waited for a thread since it looked.
  EXPECT_EQ(value_or_throw(open()), 3u);
  EXPECT_EQ(joins_, 1);
}

TEST_F(MasterTest, ASessionThatCouldNotJoinTriesAgain) {
  context_.join_job = [](const SessionJobOptions&, Time) {
    return make_status(ErrorCode::kTaskUnreachable, "it is silent");
  };
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_EQ(error_code(open().status()), ErrorCode::kTaskUnreachable);
  }
}

// Joining would begin a generation, and fence the programs of the last one.
TEST_F(MasterTest, ASessionThatCannotBeOpenedDoesNotJoin) {
  const SessionSettings settings{.lease = std::chrono::milliseconds(1), .job = {.id = "ads"}};
  EXPECT_EQ(error_code(master_->open_session(kJoining, settings, after(seconds(20))).status()),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(joins_, 0);
}

TEST_F(MasterTest, ARenewalCountsFromTheTimeAtWhichTheClientSentIt) {
  value_or_throw(open());
  EXPECT_THAT(job_->renewals, IsEmpty());
  const Time sent = Clock::real().now() - seconds(1);
  EXPECT_EQ(value_or_throw(open(master_->job_of(kJoining), sent)), 3u);
  EXPECT_THAT(job_->renewals, ElementsAre(sent));
  EXPECT_EQ(joins_, 1);
}

// A renewal may arrive after the request that closes the session.
TEST_F(MasterTest, AClosedSessionIsNotOpenedAgain) {
  value_or_throw(open());
  const auto member = master_->job_of(kJoining);
  master_->close_session(kJoining, after(seconds(20)));
  EXPECT_TRUE(job_->left);
  EXPECT_EQ(error_code(open().status()), ErrorCode::kNotFound);
  EXPECT_EQ(error_code(open(member).status()), ErrorCode::kNotFound);
  EXPECT_EQ(joins_, 1);
}

TEST_F(MasterTest, ASessionThatIsClosedWhileItJoinsLeavesItsJob) {
  on_join_ = [&] { master_->close_session(kJoining, after(seconds(20))); };
  EXPECT_EQ(error_code(open().status()), ErrorCode::kNotFound);
  EXPECT_TRUE(job_->left);
}

}  // namespace
}  // namespace trireme::internal
