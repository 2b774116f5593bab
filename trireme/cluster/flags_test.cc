#include "trireme/cluster/flags.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "trireme/cluster/expect_error.h"

namespace trireme {
namespace {

const char* const kTfConfig =
    R"({"cluster": {"worker": ["a:1", "b:1"], "ps": ["c:1", "d:1"]},
        "task": {"type": "worker", "index": 1}})";

Flags flags(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "train");
  return Flags(static_cast<int>(arguments.size()), arguments.data());
}

std::string problem(const std::vector<const char*>& arguments) {
  return error_of([&] { flags(arguments); });
}

TEST(Flags, TakeTheirValueWithAndWithoutEquals) {
  for (const Flags& read :
       {flags({"--task_type=ps", "--task_index=3", "--cluster=c.json", "--strategy=default"}),
        flags({"--task_type", "ps", "--task_index", "3", "--cluster", "c.json", "--strategy",
               "default"})}) {
    EXPECT_EQ(read.task_type(), "ps");
    EXPECT_EQ(read.task_index(), 3);
    EXPECT_EQ(read.cluster_file(), "c.json");
    EXPECT_EQ(read.strategy(), "default");
    EXPECT_TRUE(read.rest().empty());
  }
}

TEST(Flags, LeaveTheRestToTheProgram) {
  const Flags read =
      flags({"--lr", "0.1", "--task_type=ps", "data", "--tasks=x", "-v", "--", "--task_index=1"});
  EXPECT_EQ(read.rest(), (std::vector<std::string>{"--lr", "0.1", "data", "--tasks=x", "-v", "--",
                                                   "--task_index=1"}));
  EXPECT_EQ(read.task_index(), std::nullopt);
  EXPECT_EQ(read.strategy(), "");
  EXPECT_TRUE(Flags(0, nullptr).rest().empty());
}

TEST(Flags, TheLastValueCounts) {
  EXPECT_EQ(flags({"--task_type=ps", "--task_type=worker"}).task_type(), "worker");
}

TEST(WrongFlags, NameTheFlag) {
  EXPECT_EQ(problem({"--task_type"}), "--task_type needs a value, as --task_type=ROLE");
  EXPECT_EQ(problem({"--cluster", "--lr=1"}), "--cluster needs a value, as --cluster=FILE");
  EXPECT_EQ(problem({"--strategy"}), "--strategy needs a value, as --strategy=NAME");
  EXPECT_EQ(problem({"--task_index="}), "--task_index needs a value, as --task_index=N");
  EXPECT_EQ(problem({"--insecure=yes"}), "--insecure takes no value");
  EXPECT_EQ(
      problem({"--task_type=server"}),
      "--task_type=server is not a valid role; the roles are worker, chief, ps and evaluator");
  EXPECT_EQ(problem({"--task_index", "-1"}), "--task_index=-1 is not a number of 0 or more");
}

TEST(WrongFlags, AreNotTakenForThoseOfTheProgram) {
  EXPECT_EQ(problem({"--clutser", "c.json"}),
            "'--clutser' is not a flag of this program; did you mean --cluster?");
  EXPECT_EQ(problem({"--cert=certs"}),
            "'--cert' is not a flag of this program; did you mean --certs?");
  EXPECT_EQ(problem({"--task-index=1"}),
            "'--task-index' is not a flag of this program; did you mean --task_index?");
}

const Usage kUsage{.about = "Trains a net.",
                   .arguments = "[FOLDER]",
                   .flags = {{"--steps", "N", "number of steps"}, {"--quiet", "", "print less"}}};

Flags described(std::vector<const char*> arguments, Usage usage = kUsage) {
  arguments.insert(arguments.begin(), "bin/train");
  return Flags(static_cast<int>(arguments.size()), arguments.data(), std::move(usage));
}

TEST(DescribedFlags, HaveValuesOfTheProgram) {
  const Flags read = described({"--steps", "7", "run", "--quiet", "--certs=certs", "--insecure"});
  EXPECT_EQ(read.value("--steps", "100"), "7");
  EXPECT_EQ(described({}).value("--steps", "100"), "100");
  EXPECT_TRUE(read.has("--quiet"));
  EXPECT_FALSE(described({}).has("--quiet"));
  EXPECT_EQ(read.rest(), (std::vector<std::string>{"run"}));
  EXPECT_EQ(read.certs(), "certs");
  EXPECT_TRUE(read.insecure());
}

TEST(DescribedFlags, RejectWhatTheProgramDoesNotTake) {
  const auto wrong = [](const std::vector<const char*>& arguments, const Usage& usage = kUsage) {
    return error_of([&] { described(arguments, usage); });
  };
  EXPECT_EQ(wrong({"--step=7"}), "'--step' is not a flag of this program; did you mean --steps?");
  EXPECT_EQ(wrong({"--learning_rate", "0.1"}),
            "'--learning_rate' is not a flag of this program; train --help lists what it takes");
  EXPECT_EQ(wrong({"run"}, {.about = "Takes nothing."}),
            "'run' is not an argument of this program; train --help lists what it takes");
  EXPECT_EQ(wrong({"--steps"}), "--steps needs a value, as --steps=N");
}

TEST(DescribedFlagsDeathTest, HelpPrintsThemAndEndsTheProgram) {
  const std::string help = described({}).help();
  EXPECT_EQ(help.find("usage: train [FLAG...] [FOLDER]\n\nTrains a net.\n\n"), 0u) << help;
  EXPECT_NE(help.find("\n  --steps N             number of steps\n"), help.npos) << help;
  EXPECT_NE(help.find("\n  --cluster FILE        cluster spec"), help.npos) << help;
  EXPECT_NE(help.find("\n  --insecure            listen"), help.npos) << help;
  EXPECT_EXIT(described({"--steps=1", "--help"}), testing::ExitedWithCode(0), "");
}

class Resolve : public testing::Test {
 protected:
  void SetUp() override { std::ofstream(path_) << R"({"worker": ["file:1"], "ps": ["file:2"]})"; }
  void TearDown() override { std::filesystem::remove(path_); }

  Cluster resolved(const std::vector<const char*>& arguments) const {
    return resolve(flags(arguments), environment_of(variables_));
  }

  const std::string path_ =
      std::filesystem::temp_directory_path() / ("flags_test." + std::to_string(getpid()) + ".json");
  std::map<std::string, std::string> variables_;
};

TEST_F(Resolve, PrefersFileThenTfConfigThenTorchrunThenSlurm) {
  EXPECT_TRUE(resolved({}).is_local());
  variables_ = {{"SLURM_PROCID", "0"},
                {"SLURM_NTASKS", "1"},
                {"SLURM_JOB_NODELIST", "slurm"},
                {"SLURM_TASKS_PER_NODE", "1"},
                {"WORLD_SIZE", "1"}};
  EXPECT_EQ(resolved({}).spec.address({"worker", 0}), "slurm:8888");
  variables_.insert({{"RANK", "0"},
                     {"LOCAL_WORLD_SIZE", "1"},
                     {"MASTER_ADDR", "torchrun"},
                     {"MASTER_PORT", "1"}});
  EXPECT_EQ(resolved({}).spec.address({"worker", 0}), "torchrun:2");
  variables_["TF_CONFIG"] = kTfConfig;
  EXPECT_EQ(resolved({}).spec.address({"worker", 0}), "a:1");
  EXPECT_EQ(resolved({"--cluster", path_.c_str()}).spec.address({"worker", 0}), "file:1");
}

TEST_F(Resolve, HalfSetTorchrunIsNotTakenForLocal) {
  variables_ = {{"WORLD_SIZE", "4"}};
  EXPECT_EQ(error_of([&] { resolved({}); }),
            "torchrun: RANK is not set; it numbers this process among WORLD_SIZE");
}

TEST_F(Resolve, FlagsOverrideTheTaskOfTheEnvironment) {
  variables_ = {{"TF_CONFIG", kTfConfig}};
  EXPECT_EQ(resolved({}).task, (TaskId{"worker", 1}));
  EXPECT_EQ(resolved({"--task_index=0"}).task, (TaskId{"worker", 0}));
  EXPECT_EQ(resolved({"--task_type=ps"}).task, (TaskId{"ps", 1}));
  EXPECT_EQ(resolved({"--task_type=ps", "--task_index=0"}).task, (TaskId{"ps", 0}));
  EXPECT_TRUE(resolved({"--task_type=evaluator"}).is_evaluator());
  EXPECT_EQ(resolved({"--task_type=chief"}).task, std::nullopt) << "the spec has no chief";
}

TEST_F(Resolve, AFileDoesNotNameATask) {
  variables_ = {{"TF_CONFIG", kTfConfig}};
  const Cluster program = resolved({"--cluster", path_.c_str()});
  EXPECT_EQ(program.task, std::nullopt);
  EXPECT_FALSE(program.is_local());
  EXPECT_TRUE(resolved({"--cluster", path_.c_str(), "--task_type=ps", "--task_index=0"}).is_ps());
}

TEST_F(Resolve, GivesTheClusterWhatTheFlagsSayOfIt) {
  variables_ = {{"TF_CONFIG", kTfConfig}};
  const Cluster cluster = resolved({"--strategy=ps", "--certs=certs", "--insecure"});
  EXPECT_EQ(cluster.strategy, "ps");
  EXPECT_EQ(cluster.certs, "certs");
  EXPECT_TRUE(cluster.insecure);
}

TEST_F(Resolve, RejectsAStrategyThatHasNoUseForTheProcess) {
  variables_ = {{"TF_CONFIG", kTfConfig}};
  EXPECT_EQ(error_of([&] { resolved({"--strategy=mirrored"}); }),
            "strategy 'mirrored' trains in one process, but this process is /job:worker/task:1, "
            "one of 2 that were started to train together, and each would train alone; use "
            "strategy 'ps', or start the program once, without a cluster");
  EXPECT_FALSE(resolved({"--strategy=multi_worker_mirrored"}).is_server());
}

TEST_F(Resolve, TheEvaluatorNeedsNoCluster) {
  EXPECT_TRUE(resolved({"--task_type=evaluator"}).is_evaluator());
}

TEST_F(Resolve, ErrorsNameTheFlags) {
  EXPECT_EQ(
      error_of([&] {
        resolved({"--task_type=worker", "--task_index=0"});
      }),
      "--task_type=worker --task_index=0: task /job:worker/task:0 is not in a cluster; define "
      "one in TF_CONFIG's key 'cluster' or in a file");
  EXPECT_EQ(error_of([&] { resolved({"--task_index=0"}); }),
            "--task_index=0: a task index needs a task type");
  EXPECT_EQ(error_of([&] {
              resolved({"--cluster", path_.c_str(), "--task_type=ps"});
            }),
            "--task_type=ps: task type 'ps' needs a task index");
  EXPECT_EQ(error_of(
                [&] {
                  resolved({"--cluster", path_.c_str(), "--task_type=ps", "--task_index=2"});
                },
                ErrorCode::kOutOfRange),
            "--task_type=ps --task_index=2: cluster spec: job 'ps' has no task 2; it has 1 task, "
            "0");
}

TEST(ProcessEnvironment, ReadsTheProcess) {
  EXPECT_NE(process_environment()("PATH"), std::nullopt);
  EXPECT_EQ(process_environment()("TRIREME_NO_SUCH_VARIABLE"), std::nullopt);
}

}  // namespace
}  // namespace trireme
