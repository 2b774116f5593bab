#include "trireme/runtime/master_sessions.h"

#include <gtest/gtest.h>

#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

constexpr uint64_t kOpened = 5;
constexpr uint64_t kMost = MasterSessions::kMostGraphs;

class MasterSessionsTest : public testing::Test {
 protected:
  MasterSessionsTest() { throw_if_error(sessions_.open(kOpened, {})); }
  std::shared_ptr<MasterGraph> add(uint64_t number) {
    return value_or_throw(
        sessions_.add_graph(kOpened, number,
                            std::make_shared<MasterGraph>(kOpened, SessionSettings(), PlacedGraph(),
                                                          std::vector<GraphPart>()),
                            {}));
  }
  bool has(uint64_t number) {
    return value_or_throw(sessions_.find_graph(kOpened, number)) != nullptr;
  }

  MasterSessions sessions_;
};

TEST_F(MasterSessionsTest, EvictsTheGraphThatWasUsedLongestAgo) {
  for (uint64_t number = 1; number <= kMost; ++number) add(number);
  EXPECT_TRUE(has(1));  // and uses it
  add(kMost + 1);
  EXPECT_TRUE(has(1)) << "it was registered first, but used last";
  EXPECT_FALSE(has(2));
  EXPECT_TRUE(has(3));
}

TEST_F(MasterSessionsTest, KeepsAGraphWithAStepInFlight) {
  const auto busy = add(1);
  const uint64_t step = busy->begin_step({});
  for (uint64_t number = 2; number <= kMost + 1; ++number) add(number);
  EXPECT_FALSE(has(2));
  busy->end_step(step);
  add(kMost + 2);
  EXPECT_FALSE(has(1));
  EXPECT_EQ(sessions_.review(Clock::real().now()).graphs.size(), kMost);
}

TEST_F(MasterSessionsTest, KeepsTheGraphOfTheFirstAttempt) {
  const auto first = add(1);
  EXPECT_EQ(add(1), first);
}

TEST_F(MasterSessionsTest, AClosedSessionHasNoGraphs) {
  add(1);
  sessions_.close(kOpened);
  EXPECT_EQ(error_code(sessions_.find_graph(kOpened, 1).status()), ErrorCode::kNotFound);
}

TEST_F(MasterSessionsTest, AStepThatWasCancelledBeforeItArrivedDoesNotStart) {
  EXPECT_TRUE(sessions_.add_step(kOpened, 10, {}));
  EXPECT_EQ(sessions_.cancel_step(kOpened, 20), nullptr);
  EXPECT_FALSE(sessions_.add_step(kOpened, 20, {}));
  EXPECT_TRUE(sessions_.add_step(kOpened, 30, {}));
  // A repetition of a RunStep whose step was cancelled.
  sessions_.cancel_step(kOpened, 10);
  sessions_.remove_step(kOpened, 10);
  EXPECT_FALSE(sessions_.add_step(kOpened, 10, {}));
}

}  // namespace
}  // namespace trireme::internal
