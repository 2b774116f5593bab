// The examples run as processes of their own, one for each task of a cluster: with a chief in the
// spec and TF_CONFIG, and without one, with flags and certificates. All of them take --help, and
// refuse flags that they do not know.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/integration/started_tasks.h"
#include "trireme/rpc/certificates.h"

namespace trireme {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

struct Example {
  std::string name;
  int workers, ps;
  std::string prints;  // pattern in the output of the chief
};

void PrintTo(const Example& example, std::ostream* out) {
  *out << example.name;
}

const std::vector<Example> kExamples = {
    {"distributed_sample", 2, 2, "\n?15\n"},
    {"train", 3, 2, "epoch 4: loss 0\\.[01][0-9]+"},
    {"train_in_process_cluster", 3, 2, "accuracy of the last epoch: (0\\.[89]|1\\.0)"},
    {"train_with_keras_style", 3, 2, "test accuracy 0\\.[89]"},
    {"train_with_custom_training_loop", 3, 2, "Finished epoch 3, accuracy is 1.000000"},
    {"train_in_real_world_cluster", 2, 2, "accuracy of the last epoch: (1\\.0|0\\.9)"},
    {"train_with_device_setter", 2, 2, "y = (3.0|2.9).* a [+] -(2.0|1.9).* b [+] (1.0|0.9)"},
    {"worker_replicas", 2, 2, "y = 3.00 x [+] -1.00"},
    {"checkpoints", 1, 2, "kept: step-0000000080"},
    {"pin_across_tasks", 2, 2, "a [+] b = 4\n"},
    {"device_setter", 2, 2, "v5 is on /job:ps/task:0\n3\n6\n10\n"},
    {"variable_placement", 2, 2, "client 1 on /job:worker/task:1: after all steps weight is 30"},
    {"multi_worker_mirrored", 2, 0, "[23] replicas, final loss 0\\.0"},
    {"train_with_keras_style", 2, 0, "test accuracy 0\\.[89]"},
};

std::string example_path(const std::string& name) {
  return std::string(EXAMPLES_FOLDER) + "/" + name;
}

class ExampleProcesses : public testing::TestWithParam<Example> {
 protected:
  // Runs the example as all tasks of the spec, and as the chief's program.
  void run(bool chief, Told told, bool with_certificates) {
    const Example& example = GetParam();
    StartedTasks job(example.workers, example.ps, chief);
    std::vector<std::string> command = {example_path(example.name)};
    if (with_certificates) {
      const std::string certs = job.folder().path() + "/certs";
      throw_if_error(write_certificates(certs, job.spec()).status());
      command.insert(command.end(), {"--certs", certs});
    }
    std::vector<TaskId> tasks = job.spec().all_tasks();
    if (!chief && example.ps > 0) tasks.push_back({"chief", 0});
    std::ranges::partition(tasks, [](const TaskId& task) { return task.job != "chief"; });
    for (const TaskId& task : tasks) {
      if (task.job == "chief" && example.ps > 0) job.wait_until_serving();
      job.start(command, task, told);
    }
    std::string printed;
    for (const auto& [task, process] : job.all()) {
      EXPECT_TRUE(process->wait().ok()) << task << ":\n" << process->text();
      if (task.job == "chief" || (!chief && example.ps == 0 && task.index == 0)) {
        printed = process->text();
      }
    }
    EXPECT_THAT(printed, ContainsRegex(example.prints));
  }
};

INSTANTIATE_TEST_SUITE_P(All, ExampleProcesses, testing::ValuesIn(kExamples), [](const auto& info) {
  return info.param.name + (info.param.ps == 0 ? "_on_workers" : "");
});

TEST_P(ExampleProcesses, RunWithAChiefAndTfConfig) {
  run(/*chief=*/true, Told::kTfConfig, /*with_certificates=*/false);
}

TEST_P(ExampleProcesses, RunWithFlagsAndCertificates) {
  run(/*chief=*/false, Told::kFlags, /*with_certificates=*/true);
}

TEST(ExampleFlags, AreExplainedAndChecked) {
  int examples = 0;
  for (const auto& file : std::filesystem::directory_iterator(EXAMPLES_FOLDER)) {
    if (!file.is_regular_file() || file.path().has_extension()) continue;
    SCOPED_TRACE(file.path());
    ++examples;
    const auto run = [&](const std::string& flag) {
      return value_or_throw(
          run_process({.argv = {file.path(), flag}, .null_stdin = true}, after(kLimit)));
    };
    const CompletedProcess help = run("--help");
    EXPECT_TRUE(help.status.ok()) << help.stderr_text;
    EXPECT_THAT(help.stdout_text,
                AllOf(HasSubstr("usage: " + file.path().filename().string() + " [FLAG...]"),
                      HasSubstr("--certs FOLDER"), HasSubstr("--insecure")));
    const CompletedProcess wrong = run("--clutser=c.json");
    EXPECT_EQ(wrong.status.code, 1);
    EXPECT_EQ(wrong.stderr_text,
              "'--clutser' is not a flag of this program; did you mean --cluster?\n");
    EXPECT_THAT(run("--wrong").stderr_text,
                HasSubstr("'--wrong' is not a flag of this program; " +
                          file.path().filename().string() + " --help lists what it takes"));
  }
  EXPECT_GE(examples, 20);
}

}  // namespace
}  // namespace trireme
