// The examples print what their page shows, on servers in their own process and on others.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/integration/commands.h"
#include "trireme/testing/process_cluster.h"

namespace trireme {
namespace {

// The block that follows the line `<!-- output of NAME -->`.
std::string shown(const std::string& name, const char* path = EXAMPLES_PAGE) {
  std::ifstream page(path);
  std::string line, text;
  while (std::getline(page, line) && line != "<!-- output of " + name + " -->") {
  }
  std::getline(page, line);  // ```
  while (std::getline(page, line) && line != "```") text += line + "\n";
  return text;
}

std::string printed(const std::string& name, const std::vector<std::string>& arguments) {
  std::vector<std::string> argv = {std::string(EXAMPLES_FOLDER) + "/" + name};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  const CompletedProcess done =
      value_or_throw(run_process({.argv = argv, .null_stdin = true}, after(kLimit)));
  EXPECT_TRUE(done.status.ok()) << done.status.to_string() << "\n" << done.stderr_text;
  return done.stdout_text;
}

class Examples : public testing::TestWithParam<std::string> {};

TEST_P(Examples, PrintWhatTheirPageShows) {
  ASSERT_NE(shown(GetParam()), "");
  EXPECT_EQ(printed(GetParam(), {}), shown(GetParam()));
}

TEST_P(Examples, PrintTheSameOnOtherServers) {
  ProcessClusterOptions options;
  options.workers = options.ps = 2;
  ProcessCluster cluster(options);
  const std::string targets = cluster.target({"worker", 0}) + "," + cluster.target({"worker", 1});
  EXPECT_EQ(printed(GetParam(), {"--target", targets}), shown(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(All, Examples,
                         testing::Values("pin_across_tasks", "device_setter", "variable_placement"),
                         [](const auto& info) { return info.param; });

TEST(CapturedStep, PrintsWhatItsPageShows) {
  ASSERT_NE(shown("captured_step", FUNCTIONS_PAGE), "");
  EXPECT_EQ(printed("captured_step", {}), shown("captured_step", FUNCTIONS_PAGE));
}

TEST(NonDistributedSample, PrintsWhatItsPageShows) {
  ASSERT_NE(shown("non_distributed_sample"), "");
  EXPECT_EQ(printed("non_distributed_sample", {}), shown("non_distributed_sample"));
}

TEST(DistributedSample, PrintsWhatItsPageShows) {
  ASSERT_NE(shown("distributed_sample"), "");
  EXPECT_EQ(printed("distributed_sample", {}), shown("distributed_sample"));
}

TEST(ScheduledClosures, PrintsWhatItsPageShows) {
  ASSERT_NE(shown("scheduled_closures", COORDINATOR_PAGE), "");
  EXPECT_EQ(printed("scheduled_closures", {}), shown("scheduled_closures", COORDINATOR_PAGE));
}

TEST(WorkerReplicas, PrintsWhatItsPageShows) {
  ASSERT_NE(shown("worker_replicas", STRATEGIES_PAGE), "");
  EXPECT_EQ(printed("worker_replicas", {}), shown("worker_replicas", STRATEGIES_PAGE));
}

TEST(ExampleFlags, OthersAreRefused) {
  const CompletedProcess done = value_or_throw(run_process(
      {.argv = {std::string(EXAMPLES_FOLDER) + "/device_setter", "--wrong"}}, after(kLimit)));
  EXPECT_EQ(done.status.code, 2);
  EXPECT_NE(done.stderr_text.find("usage:"), std::string::npos) << done.stderr_text;
}

}  // namespace
}  // namespace trireme
