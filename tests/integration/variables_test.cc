// `trireme status --variables` shows every variable of the running servers, with its placement, its
// sizes and how often it was used.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/integration/commands.h"
#include "trireme/optim/optimizer.h"
#include "trireme/ps/ps_client.h"

namespace trireme {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

TEST(StatusOfVariables, ShowsPlacementSizesAndUse) {
  ProcessCluster cluster({{.workers = 0, .ps = 2}});
  const auto client = value_or_throw(
      PsClient::connect({.spec = cluster.spec(), .container = "job"}, after(seconds(30))));
  ShardPlacer placer(2, Placement::kRoundRobin, FixedPartitioner(2));
  const auto variables = value_or_throw(client->create(
      {{.layout = placer.place({{"table", {5, 4}}})[0], .initial = at::ones({5, 4})}}));
  throw_if_error(client->set_optimizer(variables, internal::Access<Optimizer>::rule(Adam())));
  value_or_throw(client->pull({{variables[0]}}));
  throw_if_error(client->write({{.variable = variables[0], .values = at::ones({5, 4})}}));

  const std::string config = cluster.tf_config({"chief", 0});
  const CompletedProcess table =
      run_trireme({"status", "--variables", "--interval", "0.01"}, config);
  EXPECT_TRUE(table.status.ok()) << table.stderr_text;
  EXPECT_THAT(table.stdout_text, HasSubstr("job:table/part_0"));
  EXPECT_THAT(table.stdout_text, HasSubstr("float32 [3, 4]"));

  const CompletedProcess json =
      run_trireme({"status", "--variables", "--interval", "0.01", "--json"}, config);
  EXPECT_TRUE(json.status.ok()) << json.stderr_text;
  const auto parsed = nlohmann::json::parse(json.stdout_text);
  ASSERT_EQ(parsed["variables"].size(), 2u) << json.stdout_text;
  const auto& part = parsed["variables"][1];
  EXPECT_EQ(part["task"], "/job:ps/task:1");
  EXPECT_EQ(part["name"], "table/part_1");
  EXPECT_EQ(part["bytes"], 32);
  EXPECT_EQ(part["state_bytes"], 64);
  EXPECT_EQ(part["reads"], 1);
  EXPECT_EQ(part["updates"], 1);
  EXPECT_EQ(part["optimizer"], "adam");
}

TEST(StatusOfVariables, ReportsThatThereAreNone) {
  ProcessCluster cluster({{.workers = 0, .ps = 1}});
  const CompletedProcess none =
      run_trireme({"status", "--variables", "--interval", "0.01"}, cluster.tf_config({"chief", 0}));
  EXPECT_TRUE(none.status.ok()) << none.stderr_text;
  EXPECT_THAT(none.stdout_text, HasSubstr("no task holds variables"));
}

}  // namespace
}  // namespace trireme
