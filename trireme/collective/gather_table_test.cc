#include "trireme/collective/gather_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class GatherTableTest : public testing::Test {
 protected:
  // Enters a round of two ranks.
  std::future<absl::StatusOr<GatherAnswer>> enter(int rank, uint64_t ticket,
                                                  const std::string& bytes,
                                                  Duration wait = seconds(2)) {
    auto answer = std::make_shared<std::promise<absl::StatusOr<GatherAnswer>>>();
    table_->enter("key", {.rank = rank, .size = 2, .ticket = ticket, .bytes = bytes, .wait = wait},
                  [answer](auto result) { answer->set_value(std::move(result)); });
    return answer->get_future();
  }

  std::shared_ptr<GatherTable> table_ = std::make_shared<GatherTable>();
};

TEST_F(GatherTableTest, GivesTheBytesOfAllRanksToAll) {
  auto second = enter(1, 10, "b"), first = enter(0, 20, "a");
  const GatherAnswer answer = value_or_throw(first.get());
  EXPECT_THAT(answer.gathered, ElementsAre("a", "b"));
  EXPECT_THAT(answer.missing, IsEmpty());
  EXPECT_EQ(value_or_throw(second.get()).id, answer.id);
  // A rank that did not get the answer asks again.
  EXPECT_EQ(value_or_throw(enter(1, 10, "b").get()).id, answer.id);
}

TEST_F(GatherTableTest, AnotherTicketBeginsTheNextRound) {
  auto second = enter(1, 10, "b"), first = enter(0, 20, "a");
  const uint64_t id = value_or_throw(first.get()).id;
  auto third = enter(1, 11, "d"), fourth = enter(0, 21, "c");
  const GatherAnswer answer = value_or_throw(third.get());
  EXPECT_NE(answer.id, id);
  EXPECT_THAT(answer.gathered, ElementsAre("c", "d"));
}

TEST_F(GatherTableTest, ARestartedRankReplacesItsEntry) {
  auto former = enter(1, 10, "old"), restarted = enter(1, 11, "new"), first = enter(0, 20, "a");
  EXPECT_EQ(error_code(former.get().status()), ErrorCode::kAborted);
  EXPECT_THAT(value_or_throw(first.get()).gathered, ElementsAre("a", "new"));
}

TEST_F(GatherTableTest, SaysWhichRanksAreMissing) {
  EXPECT_THAT(value_or_throw(enter(1, 10, "b", milliseconds(1)).get()).missing, ElementsAre(0));
  // The rank has reached its deadline, so that the round does not complete without it.
  EXPECT_THAT(value_or_throw(enter(0, 20, "a", milliseconds(1)).get()).missing, ElementsAre(1));
}

TEST_F(GatherTableTest, ARankThatWithdrawsIsMissing) {
  auto second = enter(1, 10, "b");
  table_->withdraw("key", 1, 11);  // another ticket
  table_->withdraw("key", 1, 10);
  EXPECT_THAT(value_or_throw(second.get()).missing, ElementsAre(0));
  EXPECT_THAT(value_or_throw(enter(0, 20, "a", milliseconds(1)).get()).missing, ElementsAre(1));
}

TEST_F(GatherTableTest, RejectsRanksThatExpectOtherNumbersOfRanks) {
  auto second = enter(1, 10, "b");
  absl::Status status;
  table_->enter("key", {.rank = 0, .size = 3, .ticket = 1},
                [&](const auto& answer) { status = answer.status(); });
  EXPECT_EQ(error_code(status), ErrorCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 expects 3 ranks, but rank 1 exp"));
  table_->enter("other", {.rank = 3, .size = 3, .ticket = 1},
                [&](const auto& answer) { status = answer.status(); });
  EXPECT_EQ(error_code(status), ErrorCode::kInvalidArgument);
}

TEST_F(GatherTableTest, LimitsTheBytesOfAllRounds) {
  const std::string bytes(1 << 20, 'x');
  const auto enter_round = [&](int round, uint64_t ticket) {
    absl::Status status;
    table_->enter(absl::StrCat("key ", round),
                  {.rank = 0, .size = 1, .ticket = ticket, .bytes = bytes},
                  [&](const auto& answer) { status = answer.status(); });
    return status;
  };
  for (int round = 0; round < 256; ++round) ASSERT_TRUE(enter_round(round, 1).ok()) << round;
  const absl::Status status = enter_round(256, 1);
  EXPECT_EQ(error_code(status), ErrorCode::kResourceExhausted) << status;
  // Entries that were withdrawn do not count.
  table_ = std::make_shared<GatherTable>();
  for (int i = 0; i < 300; ++i) {
    auto waiting = enter(1, i, bytes);
    table_->withdraw("key", 1, i);
    EXPECT_TRUE(waiting.get().ok()) << i;
  }
}

TEST_F(GatherTableTest, EndsAllWaitsWhenItIsClosed) {
  auto second = enter(1, 10, "b");
  table_->close(make_status(ErrorCode::kDataLoss, "gone"));
  EXPECT_EQ(error_code(second.get().status()), ErrorCode::kDataLoss);
  EXPECT_EQ(error_code(enter(0, 20, "a").get().status()), ErrorCode::kDataLoss);
}

}  // namespace
}  // namespace trireme::internal
