// `trireme status --input` shows whether training waits for its input, and where the time goes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/integration/commands.h"
#include "trireme/coordinator/cluster_coordinator.h"

namespace trireme {
namespace {

using testing::HasSubstr;

TEST(StatusOfInput, ShowsElementsWaitsAndSteps) {
  ProcessCluster cluster({{.workers = 1, .ps = 1}});
  const std::string config = cluster.tf_config({"chief", 0});
  EXPECT_THAT(run_trireme({"status", "--input"}, config).stdout_text,
              HasSubstr("no task has drawn elements"));

  const ParameterServerStrategy strategy(Cluster(cluster.spec()));
  ClusterCoordinator coordinator(strategy);
  const PerWorkerDataset data = coordinator.create_per_worker_dataset(
      Dataset::range(100).shuffle(10).batch(4).map([](const at::Tensor& x) { return x * 2; }));
  const auto draw =
      function("draw", std::function<at::Tensor(Iterator&)>([](Iterator& x) { return x.next(); }));
  for (int i = 0; i < 5; ++i) coordinator.schedule(draw, data.iterator());
  coordinator.join();

  const CompletedProcess table = run_trireme({"status", "--input"}, config);
  EXPECT_TRUE(table.status.ok()) << table.stderr_text;
  EXPECT_THAT(table.stdout_text, HasSubstr("range(0, 100).shuffle(10).batch(4)"));
  EXPECT_THAT(table.stdout_text, HasSubstr("5 elements"));
  const auto parsed =
      nlohmann::json::parse(run_trireme({"status", "--input", "--json"}, config).stdout_text);
  ASSERT_EQ(parsed["pipelines"].size(), 1u);
  const auto& pipeline = parsed["pipelines"][0];
  EXPECT_EQ(pipeline["task"], "/job:worker/task:0");
  EXPECT_EQ(pipeline["elements"], 5);
  ASSERT_EQ(pipeline["steps"].size(), 2u);
  EXPECT_EQ(pipeline["steps"][0]["step"], "batch");
  EXPECT_GE(pipeline["steps"][1]["seconds_with_input"], pipeline["steps"][0]["seconds_with_input"]);
}

}  // namespace
}  // namespace trireme
