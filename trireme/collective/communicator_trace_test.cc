// Collective calls in a traced step: how much of their time is hidden behind compute.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "trireme/collective/communicator.h"
#include "trireme/collective/engine_test.h"
#include "trireme/exec/operator_trace.h"
#include "trireme/testing/wait_until.h"

namespace trireme::internal {
namespace {

using std::chrono::seconds;

// Calls `body` for both ranks of a ring, each on a thread of its own.
void on_two_ranks(const std::function<void(Communicator&)>& body) {
  const std::vector<std::shared_ptr<Group>> groups = make_local_groups(2);
  std::vector<std::thread> threads;
  for (const auto& group : groups) {
    threads.emplace_back([&] {
      Communicator communicator(group, CommunicationImplementation::kRing, seconds(30));
      body(communicator);
      communicator.barrier({.timeout = seconds(30)}).wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(CommunicatorTrace, ASumThatIsCompleteBeforeTheStepNeedsItIsHidden) {
  on_two_ranks([](Communicator& communicator) {
    OperatorTrace trace;
    {
      const OperatorTrace::Recording recording(&trace);
      const at::Tensor values = at::ones({300});
      const CollectiveWork work =
          communicator.all_reduce(values, Reduction::kSum, {.tag = "bucket"});
      ASSERT_TRUE(wait_until([&] { return work.done(); }, seconds(30)));
      work.wait();
    }
    const CommunicationTotals totals = trace.communication();
    EXPECT_EQ(totals.calls, 1);
    EXPECT_EQ(totals.bytes, 1200);
    EXPECT_GT(totals.time, Duration::zero());
    EXPECT_EQ(totals.exposed, Duration::zero());
    EXPECT_EQ(totals.hidden_share(), 1);
  });
}

// The other rank may be there before or after this one, so a single sum may be hidden in part
// between its start and the wait. Of many, one is not.
TEST(CommunicatorTrace, ASumThatTheStepNeedsAtOnceIsExposed) {
  constexpr int kSums = 200;
  on_two_ranks([](Communicator& communicator) {
    const at::Tensor values = at::ones({300});
    double least = 1;
    for (int i = 0; i < kSums; ++i) {
      OperatorTrace trace;
      {
        const OperatorTrace::Recording recording(&trace);
        communicator.all_reduce(values, Reduction::kSum, {.tag = "bucket"}).wait();
      }
      const CommunicationTotals totals = trace.communication();
      EXPECT_EQ(totals.calls, 1);
      EXPECT_GT(totals.time, Duration::zero());
      EXPECT_LE(totals.exposed, totals.time);
      EXPECT_GE(totals.hidden_share(), 0);
      least = std::min(least, totals.hidden_share());
    }
    EXPECT_LT(least, 0.1);
  });
}

}  // namespace
}  // namespace trireme::internal
