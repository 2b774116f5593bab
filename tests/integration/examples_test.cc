// The examples print what their documentation shows, on servers in their own process and on servers
// in other processes. docs/operators.md lists exactly the operators that a graph may use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/integration/commands.h"
#include "trireme/base/error.h"
#include "trireme/rpc/certificates.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/process_cluster.h"

namespace trireme {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

// Returns the block that follows the line `<!-- output of NAME -->` of a page.
std::string shown(const std::string& name, const char* path = EXAMPLES_PAGE) {
  std::ifstream page(path);
  std::string line, text;
  while (std::getline(page, line) && line != "<!-- output of " + name + " -->") {
  }
  std::getline(page, line);  // ```
  while (std::getline(page, line) && line != "```") text += line + "\n";
  return text;
}

// Runs an example and returns its output.
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

TEST(Operators, AreListedInTheirPage) {
  const CompletedProcess done = value_or_throw(run_process(
      {.argv = {trireme_binary(), "graph", "operators"}, .null_stdin = true}, after(kLimit)));
  ASSERT_NE(shown("trireme graph operators", OPERATORS_PAGE), "");
  EXPECT_EQ(done.stdout_text, shown("trireme graph operators", OPERATORS_PAGE))
      << "update docs/operators.md with the output of `trireme graph operators`";
}

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

// The first run is killed at step 50, and the second continues from the checkpoint of step 40.
TEST(Checkpoints, ContinueAfterAKillAsTheirPageShows) {
  const TemporaryFolder folder;
  const std::string program = std::string(EXAMPLES_FOLDER) + "/checkpoints";
  const CompletedProcess killed = value_or_throw(run_process(
      {.argv = {program, folder.path() + "/run", "50"}, .null_stdin = true}, after(kLimit)));
  EXPECT_FALSE(killed.status.ok());
  ASSERT_NE(shown("checkpoints"), "");
  EXPECT_EQ(killed.stdout_text + printed("checkpoints", {folder.path() + "/run"}),
            shown("checkpoints"));
}

// Workers do not wait for each other, so the numbers differ. The last epoch always reaches 1.
constexpr char kLearns[] =
    "^Finished epoch 0, accuracy is [01]\\.[0-9]+\\.\n"
    "Finished epoch 1, accuracy is [01]\\.[0-9]+\\.\n"
    "Finished epoch 2, accuracy is [01]\\.[0-9]+\\.\n"
    "Finished epoch 3, accuracy is 1\\.000000\\.\n"
    "Final loss is 0\\.[0-9]+\n$";

TEST(TrainWithCustomTrainingLoop, Learns) {
  EXPECT_THAT(printed("train_with_custom_training_loop", {}), ContainsRegex(kLearns));
  EXPECT_THAT(shown("train_with_custom_training_loop"), ContainsRegex(kLearns));
}

class RealWorldCluster : public testing::Test {
 protected:
  std::string written(const ClusterSpec& spec) const {
    folder_.write("cluster.json", spec.to_json());
    return folder_.path() + "/cluster.json";
  }

  const TemporaryFolder folder_;
};

TEST_F(RealWorldCluster, TheChiefTrainsOnServersThatNeverSawTheProgram) {
  ProcessCluster cluster({{.workers = 2, .ps = 2}});
  EXPECT_THAT(printed("train_in_real_world_cluster",
                      {"--cluster", written(cluster.spec()), "--task_type", "chief"}),
              ContainsRegex(kLearns));
}

TEST_F(RealWorldCluster, OneBinaryTakesEveryRoleAndAllEndWithTheJob) {
  std::vector<PortReservation> ports;
  for (int i = 0; i < 5; ++i) ports.push_back(value_or_throw(PortReservation::make()));
  const ClusterSpec spec{{"worker", {ports[0].address(), ports[1].address()}},
                         {"ps", {ports[2].address(), ports[3].address()}},
                         {"chief", {ports[4].address()}}};
  const std::string file = written(spec);
  throw_if_error(write_certificates(folder_.path() + "/certs", spec).status());
  const std::string certs = folder_.path() + "/certs";
  std::vector<std::unique_ptr<Subprocess>> servers;
  for (const TaskId& task : spec.all_tasks()) {
    if (task.job == "chief") continue;
    servers.push_back(value_or_throw(
        Subprocess::start({.argv = {std::string(EXAMPLES_FOLDER) + "/train_in_real_world_cluster",
                                    "--cluster", file, "--certs", certs, "--task_type", task.job,
                                    "--task_index", std::to_string(task.index)}})));
  }
  EXPECT_THAT(printed("train_in_real_world_cluster", {"--cluster", file, "--certs", certs,
                                                      "--task_type", "chief", "--task_index", "0"}),
              ContainsRegex(kLearns));
  for (const auto& server : servers) {
    const auto status = server->wait(after(kLimit));
    ASSERT_TRUE(status.has_value());
    EXPECT_TRUE(status->ok()) << status->to_string();
  }
}

TEST_F(RealWorldCluster, NamesTheMissingClusterFlag) {
  const CompletedProcess done = value_or_throw(run_process(
      {.argv = {std::string(EXAMPLES_FOLDER) + "/train_in_real_world_cluster"}}, after(kLimit)));
  EXPECT_EQ(done.status.code, 2);
  EXPECT_THAT(done.stderr_text, HasSubstr("--cluster"));
}

TEST(WorkerReplicas, PrintsWhatItsPageShows) {
  ASSERT_NE(shown("worker_replicas", STRATEGIES_PAGE), "");
  EXPECT_EQ(printed("worker_replicas", {}), shown("worker_replicas", STRATEGIES_PAGE));
}

// Workers do not wait for each other, so the losses differ; but the net always learns.
constexpr char kTrains[] =
    "^epoch 1: loss 0\\.[0-9]+\nepoch 2: loss 0\\.[0-9]+\nepoch 3: loss 0\\.[0-9]+\n"
    "epoch 4: loss 0\\.[01][0-9]+\n$";

TEST(Train, LearnsAsTheReadmeShows) {
  EXPECT_THAT(printed("train", {}), ContainsRegex(kTrains));
  EXPECT_THAT(shown("train", README_PAGE), ContainsRegex(kTrains));
}

TEST(Train, IsTheProgramOfTheReadme) {
  const auto text_of = [](const char* path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  const std::string program = text_of(TRAIN_SOURCE);
  const std::string code = program.substr(program.find("#include <torch/torch.h>"));
  EXPECT_THAT(text_of(README_PAGE), HasSubstr("```cpp\n" + code + "```\n"));
}

TEST(ErrorsPage, ListsEveryCodeWithItsNumber) {
  std::ifstream page(ERRORS_PAGE);
  std::set<std::string> listed;  // "`NAME` | NUMBER"
  for (std::string line; std::getline(page, line);) {
    const size_t end = line.find(" | ", line.find(" | ") + 1);
    if (line.starts_with("| `") && end != std::string::npos) listed.insert(line.substr(2, end - 2));
  }
  for (int number = 0; number < 200; ++number) {
    const std::string name = error_code_name(static_cast<ErrorCode>(number));
    if (name == "UNKNOWN" && number != static_cast<int>(ErrorCode::kUnknown)) continue;
    EXPECT_THAT(listed, testing::Contains("`" + name + "` | " + std::to_string(number)));
  }
}

TEST(ExampleFlags, RejectsUnknownFlags) {
  const CompletedProcess done = value_or_throw(run_process(
      {.argv = {std::string(EXAMPLES_FOLDER) + "/device_setter", "--wrong"}}, after(kLimit)));
  EXPECT_EQ(done.status.code, 2);
  EXPECT_NE(done.stderr_text.find("usage:"), std::string::npos) << done.stderr_text;
}

}  // namespace
}  // namespace trireme
