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
  throw_if_error(client->join({.id = "ads"}, after(seconds(30))));
  ShardPlacer placer(2, Placement::kRoundRobin, FixedPartitioner(2));
  const auto variables = value_or_throw(client->create(
      {{.layout = placer.place({{"table", {5, 4}}})[0], .initial = at::ones({5, 4})}}));
  throw_if_error(client->set_optimizer(variables, internal::Access<Optimizer>::rule(Adam())));
  value_or_throw(client->pull({{variables[0]}}));
  throw_if_error(client->begin_writer(7));
  throw_if_error(
      client->push({{.variable = variables[0], .values = at::ones({5, 4})}}, {.id = {7, 1, 0}}));

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
  EXPECT_EQ(part["job"], "ads");
  EXPECT_EQ(part["name"], "table/part_1");
  EXPECT_EQ(part["bytes"], 32);
  EXPECT_EQ(part["state_bytes"], 64);
  EXPECT_EQ(part["reads"], 1);
  EXPECT_EQ(part["updates"], 1);
  EXPECT_EQ(part["optimizer"], "adam");
}

TEST(JobsCommand, ListsAndDropsJobs) {
  ProcessCluster cluster({{.workers = 1, .ps = 2}});
  const std::string config = cluster.tf_config({"chief", 0});
  EXPECT_EQ(run_trireme({"jobs", "ls"}, config).stdout_text, "no task holds a job\n");
  const auto client =
      value_or_throw(PsClient::connect({.spec = cluster.spec()}, after(seconds(30))));
  throw_if_error(client->join({.id = "ads"}, after(seconds(30))));
  ShardPlacer placer(2, Placement::kRoundRobin, FixedPartitioner(2));
  value_or_throw(client->create({{.layout = placer.place({{"table", {5, 4}}})[0]}}));

  EXPECT_THAT(run_trireme({"jobs", "ls"}, config).stdout_text, HasSubstr("ads"));
  const auto parsed =
      nlohmann::json::parse(run_trireme({"jobs", "ls", "--json"}, config).stdout_text);
  ASSERT_EQ(parsed["jobs"].size(), 1u);
  const auto& job = parsed["jobs"][0];
  EXPECT_EQ(job["job"], "ads");
  EXPECT_EQ(job["generation"], 1);
  EXPECT_EQ(job["programs"], 1);
  EXPECT_EQ(job["variables"], 2);
  EXPECT_EQ(job["bytes"], 80);
  EXPECT_EQ(job["tasks"].size(), 2u);
  EXPECT_TRUE(job["freed_in_seconds"].is_null());

  const CompletedProcess unknown = run_trireme({"jobs", "drop", "other"}, config);
  EXPECT_EQ(unknown.status.code, 1);
  EXPECT_THAT(unknown.stderr_text, HasSubstr("no task that answers has job 'other'"));
  const CompletedProcess dropped = run_trireme({"jobs", "drop", "ads"}, config);
  EXPECT_TRUE(dropped.status.ok()) << dropped.stderr_text;
  EXPECT_EQ(dropped.stdout_text, "dropped job 'ads' on /job:ps/task:0, /job:ps/task:1\n");
  EXPECT_EQ(run_trireme({"jobs", "ls"}, config).stdout_text, "no task holds a job\n");
}

TEST(JobsCommand, SaysNothingOfTasksThatDoNotAnswer) {
  ProcessCluster cluster({{.workers = 1, .ps = 1}});
  const std::string config = cluster.tf_config({"chief", 0});
  cluster.kill({"worker", 0});
  const CompletedProcess some = run_trireme({"jobs", "ls"}, config);
  EXPECT_EQ(some.status.code, 1);
  EXPECT_EQ(some.stdout_text, "no task that answers holds a job\n");
  cluster.kill({"ps", 0});
  const CompletedProcess none = run_trireme({"jobs", "ls"}, config);
  EXPECT_EQ(none.status.code, 1);
  EXPECT_EQ(none.stdout_text, "");
  EXPECT_THAT(none.stderr_text, HasSubstr("/job:ps/task:0"));
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
