// The examples print what their documentation shows, on servers in their own process and on servers
// in other processes. docs/operators.md lists exactly the operators that a graph may use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
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

std::string example(const std::string& name) {
  return std::string(EXAMPLES_FOLDER) + "/" + name;
}

// Runs an example in a folder and returns its output.
std::string printed(const std::string& name, const std::vector<std::string>& arguments,
                    const std::string& folder = "") {
  std::vector<std::string> argv = {example(name)};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  const CompletedProcess done = value_or_throw(
      run_process({.argv = argv, .directory = folder, .null_stdin = true}, after(kLimit)));
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

// Returns the path of a page, such as "docs/fit.md".
std::string page(const std::string& name) {
  const std::string source = TRAIN_SOURCE;
  return source.substr(0, source.rfind("examples/")) + name;
}

// Returns a text with `#` for each number and its unit of time. Workers do not wait for each other,
// so the figures of a training differ from run to run.
std::string without_numbers(const std::string& text) {
  static const std::regex number("[0-9]+([.][0-9]+)?(e[-+]?[0-9]+)?([mu]?s\\b)?");
  return std::regex_replace(text, number, "#");
}

// Returns a text with `#` for each time, such as "19ms". All else is the same in every run of a
// synchronous training.
std::string without_times(const std::string& text) {
  static const std::regex time("[0-9]+([.][0-9]+)?[mu]?s\\b");
  return std::regex_replace(text, time, "#");
}

// Returns the numbers after each `label` of a text.
std::vector<double> numbers_after(const std::string& label, const std::string& text) {
  std::vector<double> numbers;
  for (size_t at = 0; (at = text.find(label, at)) != std::string::npos;) {
    numbers.push_back(std::stod(text.substr(at += label.size())));
  }
  return numbers;
}

// Checks the output of a training whose workers do not wait for each other, and the page that shows
// the output of another run: they agree but for the numbers, and in both the loss falls.
void expect_trains_as_shown(const std::string& output, const std::string& page,
                            const std::string& label = " - loss: ") {
  EXPECT_EQ(without_numbers(output), without_numbers(page));
  for (const std::string& text : {output, page}) {
    const std::vector<double> losses = numbers_after(label, text);
    ASSERT_GE(losses.size(), 2u) << text;
    EXPECT_LT(losses.back(), losses.front()) << text;
  }
}

// Returns the number after the last `label` of a text; 0 if there is none.
double number_after(const std::string& label, const std::string& text) {
  const size_t place = text.rfind(label);
  return place == std::string::npos ? 0 : std::stod(text.substr(place + label.size()));
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
  EXPECT_EQ(
      shown("train_with_custom_training_loop", page("docs/coming_from_tensorflow.md").c_str()),
      shown("train_with_custom_training_loop"));
}

class RealWorldCluster : public testing::Test {
 protected:
  std::string written(const ClusterSpec& spec) const {
    folder_.write("cluster.json", spec.to_json());
    return folder_.path() + "/cluster.json";
  }

  // Checks the output of the chief.
  static void expect_trained(const std::string& output) {
    expect_trains_as_shown(output, shown("train_in_real_world_cluster"));
    EXPECT_GT(number_after("accuracy of the last epoch: ", output), 0.97) << output;
  }

  SubprocessOptions command(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), example("train_in_real_world_cluster"));
    return {.argv = std::move(arguments), .directory = folder_.path(), .null_stdin = true};
  }

  const TemporaryFolder folder_;
};

TEST_F(RealWorldCluster, TheChiefTrainsOnServersThatNeverSawTheProgram) {
  ProcessCluster cluster({{.workers = 2, .ps = 2}});
  expect_trained(printed("train_in_real_world_cluster",
                         {"--cluster", written(cluster.spec()), "--task_type", "chief"}));
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
        Subprocess::start(command({"--cluster", file, "--certs", certs, "--task_type", task.job,
                                   "--task_index", std::to_string(task.index)}))));
  }
  RunningCommand evaluator(command({"--cluster", file, "--task_type", "evaluator", "run"}));
  expect_trained(printed(
      "train_in_real_world_cluster",
      {"--cluster", file, "--certs", certs, "--task_type", "chief", "--task_index", "0", "run"},
      folder_.path()));
  for (const auto& server : servers) {
    const auto status = server->wait(after(kLimit));
    ASSERT_TRUE(status.has_value());
    EXPECT_TRUE(status->ok()) << status->to_string();
  }
  EXPECT_TRUE(evaluator.wait().ok()) << evaluator.text();
  EXPECT_THAT(evaluator.text(),
              ContainsRegex("after epoch 5: loss 0[.][0-9]+, accuracy (1[.]0|0[.]9)"));
  const std::vector<double> losses = numbers_after(": loss ", shown("the evaluator"));
  ASSERT_GE(losses.size(), 2u);
  EXPECT_LT(losses.back(), losses.front());
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
  const std::string output = printed("train", {});
  EXPECT_THAT(output, ContainsRegex(kTrains));
  EXPECT_THAT(shown("train", README_PAGE), ContainsRegex(kTrains));
  expect_trains_as_shown(output, shown("train", README_PAGE), ": loss ");
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

// Writes scikit-learn's digits into a folder and returns the path of the file.
std::string written_digits(const TemporaryFolder& folder) {
  const CompletedProcess unpacked = value_or_throw(
      run_process({.argv = {"/usr/bin/env", "gzip", "-dc", DIGITS_FILE}}, after(kLimit)));
  folder.write("digits.csv", unpacked.stdout_text);
  return folder.path() + "/digits.csv";
}

TEST(TrainInProcessCluster, PrintsWhatItsPageShowsExceptForNumbers) {
  const TemporaryFolder folder;
  const std::string output = printed("train_in_process_cluster", {folder.path() + "/run"});
  expect_trains_as_shown(output, shown("train_in_process_cluster"));
  EXPECT_GT(number_after("accuracy of the last epoch: ", output), 0.9) << output;
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/run/best.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/run/log.csv"));
  EXPECT_FALSE(std::filesystem::is_empty(folder.path() + "/run/logs/train"));
}

TEST(TrainWithKerasStyle, TrainsSavesAndReloadsAsItsPageShows) {
  const TemporaryFolder folder;
  const std::string trained = printed("train_with_keras_style", {"circle"}, folder.path());
  expect_trains_as_shown(trained, shown("train_with_keras_style"));
  EXPECT_GT(number_after("test accuracy ", trained), 0.85) << trained;

  const std::string answers = trained.substr(trained.find("test accuracy"));
  EXPECT_EQ(printed("train_with_keras_style", {"circle"}, folder.path()), answers);
  EXPECT_EQ(printed("train_with_keras_style", {"circle", "--strategy", "default"}, folder.path()),
            answers);
}

TEST(TrainWithDeviceSetter, PrintsWhatItsPageShowsExceptForNumbers) {
  const CompletedProcess done =
      run_trireme({"launch", "--workers", "2", "--ps", "2", "--same-binary", "--",
                   example("train_with_device_setter")});
  EXPECT_TRUE(done.status.ok()) << done.stderr_text;
  const auto sorted = [](const std::string& text) {  // The workers end in any order.
    std::multiset<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.insert(without_numbers(line));
    return lines;
  };
  EXPECT_EQ(sorted(done.stdout_text), sorted(shown("train_with_device_setter")))
      << done.stdout_text;
  for (const std::string& text : {done.stdout_text, shown("train_with_device_setter")}) {
    EXPECT_THAT(text, ContainsRegex("y = (3.0|2.9).* a [+] -(2.0|1.9).* b [+] (1.0|0.9)"));
  }
}

TEST(DigitsExample, ReachesAnAccuracyOf97PercentOnParameterServers) {
  const TemporaryFolder folder;
  const std::string output = printed("digits", {written_digits(folder)});
  expect_trains_as_shown(output, shown("digits"));
  EXPECT_GE(number_after("test accuracy ", output), 0.97) << output;
}

TEST(Finetune, TrainsANewHeadOnFrozenLayersOfPyTorch) {
  const TemporaryFolder folder;
  const std::string digits = written_digits(folder), weights = folder.path() + "/pytorch";
  const auto python = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), PYTHON_WITH_TORCH);
    return value_or_throw(run_process({.argv = arguments, .null_stdin = true}, after(kLimit)));
  };
  if (!python({"-c", "import numpy, safetensors, torch"}).status.ok()) {
    GTEST_SKIP() << "needs " << PYTHON_WITH_TORCH << " with torch, numpy and safetensors";
  }
  const CompletedProcess pretrained = python({PRETRAIN_DIGITS, digits, weights});
  ASSERT_TRUE(pretrained.status.ok()) << pretrained.stderr_text;
  const std::string output = printed("finetune", {digits, weights}, folder.path());
  expect_trains_as_shown(pretrained.stdout_text + output, shown("finetune"));
  EXPECT_LT(number_after("test accuracy ", output), 0.5) << output;
  EXPECT_GT(number_after("new head, ", output), 0.93) << output;

  const CompletedProcess same = python({"-c",
                                        "import sys, torch; from safetensors.torch import "
                                        "load_file; a, b = map(load_file, sys.argv[1:])\n"
                                        "sys.exit(not all(torch.equal(a[name], b[name]) for name "
                                        "in a if name.startswith('features.')))",
                                        weights, folder.path() + "/digits.safetensors"});
  EXPECT_TRUE(same.status.ok()) << "the frozen layers have changed: " << same.stderr_text;
}

// The replicas are synchronous, so two of them train as one does, up to rounding, in every epoch.
TEST(MirroredExample, TrainsAsOneDeviceDoes) {
  const std::string output = printed("mirrored", {});
  EXPECT_EQ(without_times(output), without_times(shown("mirrored")));
  const std::string alone = printed("mirrored", {"--devices", "cpu:0"});
  EXPECT_EQ(numbers_after("val_loss: ", output).size(), 5u);
  EXPECT_THAT(numbers_after("loss: ", output),
              testing::Pointwise(testing::DoubleNear(0.0005), numbers_after("loss: ", alone)));
}

// Every batch is that of all workers together, so two workers train as one process does.
TEST(MultiWorkerMirroredExample, TrainsOnTwoWorkersAsInOneProcess) {
  const CompletedProcess done = run_trireme(
      {"launch", "--workers", "2", "--mirrored", "--", example("multi_worker_mirrored")});
  EXPECT_TRUE(done.status.ok()) << done.stderr_text;
  ASSERT_NE(shown("multi_worker_mirrored"), "");
  for (const std::string name : {"examples/README.md", "docs/multi_worker.md"}) {
    const std::string expected = shown("multi_worker_mirrored", page(name).c_str());
    EXPECT_EQ(without_times(done.stdout_text), without_times(expected)) << name;
  }
  const std::vector<double> losses = numbers_after("loss: ", done.stdout_text);
  EXPECT_EQ(losses.size(), 5u);
  EXPECT_THAT(losses,
              testing::Pointwise(testing::DoubleNear(0.0005),
                                 numbers_after("loss: ", printed("multi_worker_mirrored", {}))));
}

// Worker 0 has a namespace for process ids, like a container, so that it shares no memory with the
// others.
TEST(MultiWorkerMirroredExample, TrainsOnTwoHostsAsInOneProcess) {
  const std::string enter = "unshare --pid --fork --mount-proc --kill-child ";
  const CompletedProcess entered = value_or_throw(
      run_process({.argv = {"sh", "-c", enter + "true"}, .null_stdin = true}, after(kLimit)));
  if (!entered.status.ok()) GTEST_SKIP() << "the test needs namespaces (root or CAP_SYS_ADMIN)";
  const std::string start =
      "case \"$TF_CONFIG\" in *'\"index\":0'*) exec " + enter + "\"$0\";; esac; exec \"$0\"";
  const CompletedProcess done = run_trireme({"launch", "--workers", "3", "--mirrored", "--", "sh",
                                             "-c", start, example("multi_worker_mirrored")});
  EXPECT_TRUE(done.status.ok()) << done.stderr_text;
  EXPECT_THAT(done.stderr_text, HasSubstr("collectives use a hierarchy: 2 hosts, 3 ranks"));
  const std::vector<double> losses = numbers_after("loss: ", done.stdout_text);
  EXPECT_EQ(losses.size(), 5u);
  EXPECT_THAT(losses,
              testing::Pointwise(testing::DoubleNear(0.0005),
                                 numbers_after("loss: ", printed("multi_worker_mirrored", {}))));
}

TEST(CentralStorageExample, PrintsWhatItsPageShowsExceptForTimes) {
  const std::string output = printed("central_storage", {});
  EXPECT_EQ(without_times(output), without_times(shown("central_storage")));
}

// Returns a text without the spaces at the beginning of lines, so that code can be compared with an
// excerpt of it.
std::string without_indents(const std::string& text) {
  return std::regex_replace(text, std::regex("\\n +"), "\n");
}

class Excerpts : public testing::TestWithParam<std::string> {};

// A block of code after `<!-- from FILE -->` is a part of that file.
TEST_P(Excerpts, AreInTheProgramsThatThePageNames) {
  std::ifstream lines(page("docs/" + GetParam()));
  const std::regex mark("<!-- from (.*) -->");
  int count = 0;
  std::smatch found;
  for (std::string line; std::getline(lines, line);) {
    if (!std::regex_match(line, found, mark)) continue;
    std::ostringstream source;
    source << std::ifstream(page(found[1].str())).rdbuf();
    std::string code = "\n";
    std::getline(lines, line);  // ```cpp
    while (std::getline(lines, line) && line != "```") code += line + "\n";
    EXPECT_THAT(without_indents(source.str()), HasSubstr(without_indents(code)));
    ++count;
  }
  EXPECT_GT(count, 0);
}

INSTANTIATE_TEST_SUITE_P(All, Excerpts,
                         testing::Values("fit.md", "coming_from_tensorflow.md",
                                         "coming_from_pytorch.md", "mirrored.md",
                                         "multi_worker.md"),
                         [](const auto& info) {
                           return info.param.substr(0, info.param.size() - 3);
                         });

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

}  // namespace
}  // namespace trireme
