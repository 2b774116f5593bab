#include "trireme/placement/existing_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/status.h"
#include "trireme/graph/small_graph.h"

namespace trireme::internal {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Returns a graph of two operators that name these devices, the first in a scope of its own.
std::shared_ptr<const GraphData> graph_on(const std::string& first, const std::string& second) {
  auto graph = std::make_shared<GraphData>(small_graph());
  graph->def.add_scopes("'" + first + "'");
  graph->def.mutable_nodes(0)->set_device(first);
  graph->def.mutable_nodes(0)->set_device_reason(1);
  graph->def.mutable_nodes(1)->set_device(second);
  return graph;
}

TEST(ExistingDevices, LeavesAGraphThatNamesOnlyThese) {
  const auto graph = graph_on("/gpu:1", "/job:worker");
  const auto same = value_or_throw(use_existing_devices(graph, {.gpus = 2}, ""));
  EXPECT_EQ(same.graph, graph);
  EXPECT_THAT(same.missing, IsEmpty());
}

TEST(ExistingDevices, ReplacesOthersByTheNearestAndSaysSo) {
  const auto used =
      value_or_throw(use_existing_devices(graph_on("/gpu:5", "/cpu:1"), {.gpus = 2}, "it has two"));
  EXPECT_EQ(used.graph->def.nodes(0).device(), "/gpu:0");
  EXPECT_EQ(used.graph->def.scopes(used.graph->def.nodes(0).device_reason() - 1),
            "'/gpu:5'; there is no /gpu:5");
  EXPECT_EQ(used.graph->def.nodes(1).device(), "/cpu:0");
  EXPECT_EQ(used.graph->def.scopes(used.graph->def.nodes(1).device_reason() - 1),
            "there is no /cpu:1");
  EXPECT_THAT(used.missing,
              ElementsAre("device '/gpu:5', named by scope '/gpu:5', does not exist; using '/gpu:0'"
                          " (it has two)",
                          "device '/cpu:1' does not exist; using '/cpu:0' (it has two)"));
}

TEST(ExistingDevices, AcceptsAGraphThatNobodyHasChecked) {
  auto graph = std::make_shared<GraphData>(*graph_on("/gpu:0", ""));
  graph->def.mutable_nodes(0)->set_device_reason(900);
  const auto used = value_or_throw(use_existing_devices(graph, {}, "it has none"));
  EXPECT_THAT(used.missing, ElementsAre("device '/gpu:0' does not exist; using '/cpu:0' (it has "
                                        "none)"));
}

TEST(ExistingDevices, ReportsLittleOfALongScopeAndOfManyDevices) {
  auto graph = std::make_shared<GraphData>(small_graph());
  const proto::Node node = graph->def.nodes(0);
  graph->def.add_scopes("two\nlines" + std::string(100'000, 'x'));
  for (int i = 0; i < 1000; ++i) {
    proto::Node& added = *graph->def.add_nodes();
    added = node;
    added.set_device("/gpu:" + std::to_string(i));
    added.set_device_reason(1);
  }
  const auto used = value_or_throw(use_existing_devices(graph, {}, "it has none"));
  EXPECT_EQ(used.missing.size(), 16u);
  EXPECT_LT(used.missing[0].size(), 400u);
  EXPECT_EQ(used.missing[0].find('\n'), std::string::npos);
  EXPECT_LT(used.graph->def.ByteSizeLong(), graph->def.ByteSizeLong() + 1000 * 400);
}

TEST(ExistingDevices, RejectsAnInvalidName) {
  EXPECT_FALSE(use_existing_devices(graph_on("/abc:1", ""), {}, "").ok());
}

}  // namespace
}  // namespace trireme::internal
