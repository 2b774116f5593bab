#include "trireme/runtime/session_graphs.h"

#include <gtest/gtest.h>

namespace trireme::internal {
namespace {

class SessionGraphsTest : public testing::Test {
 protected:
  // Registers a graph with this content, and returns its plan.
  std::shared_ptr<const Plan> add(size_t content) {
    auto graph = std::make_shared<KnownGraph>();
    graph->graph = graphs_.next_number();
    graph->plan = std::make_shared<Plan>();
    graph->content = {content, content};
    graphs_.add(graph);
    return graph->plan;
  }
  std::shared_ptr<const KnownGraph> find_same(size_t content,
                                              const std::shared_ptr<const Plan>& plan) {
    FunctionStep step;
    step.plan = plan;
    return graphs_.find_same(step, {content, content});
  }

  SessionGraphs graphs_;
};

TEST_F(SessionGraphsTest, EvictsTheGraphThatWasUsedLongestAgo) {
  const auto used = add(0);
  const auto unused = add(1);
  for (size_t content = 2; content < 5000; ++content) {
    add(content);
    ASSERT_NE(graphs_.find(used.get()), nullptr) << "after " << content << " other graphs";
  }
  EXPECT_EQ(graphs_.find(unused.get()), nullptr);
  EXPECT_NE(find_same(0, std::make_shared<Plan>()), nullptr);
  EXPECT_EQ(find_same(1, std::make_shared<Plan>()), nullptr);
}

TEST_F(SessionGraphsTest, AnotherCaptureFindsTheGraphByItsContent) {
  const auto first = add(0);
  const auto second = std::make_shared<Plan>();
  EXPECT_EQ(graphs_.find(second.get()), nullptr);
  const auto graph = find_same(0, second);
  ASSERT_NE(graph, nullptr);
  EXPECT_EQ(graph, graphs_.find(first.get()));
  EXPECT_EQ(graph, graphs_.find(second.get()));
}

TEST_F(SessionGraphsTest, HoldsABoundedNumberOfPlans) {
  std::vector<std::weak_ptr<const Plan>> plans;
  for (size_t content = 0; content < 1000; ++content) {
    plans.push_back(add(content % 400));
    const auto again = std::make_shared<Plan>();
    plans.push_back(again);
    find_same(content % 400, again);
  }
  size_t held = 0;
  for (const auto& plan : plans) held += plan.expired() ? 0 : 1;
  // Some are held as plans, others as the plan of a graph.
  EXPECT_LE(held, 2 * SessionGraphs::kMostGraphs);
}

}  // namespace
}  // namespace trireme::internal
