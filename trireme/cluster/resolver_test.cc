#include "trireme/cluster/resolver.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "trireme/cluster/expect_error.h"

namespace trireme {
namespace {

const ClusterSpec kSpec{{"worker", {"a:2222", "b:2222"}}, {"ps", {"a:2221"}}};

Cluster of_tf_config(const std::string& text) {
  return TfConfigResolver(environment_of({{"TF_CONFIG", text}})).cluster();
}

std::string problem(const std::string& text, ErrorCode code = ErrorCode::kInvalidArgument) {
  return error_of([&] { of_tf_config(text); }, code);
}

TEST(Cluster, KnowsItsRole) {
  EXPECT_TRUE(Cluster().is_local());
  EXPECT_FALSE(Cluster().is_server());
  EXPECT_TRUE(Cluster(kSpec, TaskId{"worker", 1}).is_server());
  EXPECT_TRUE(Cluster(kSpec, TaskId{"ps", 0}).is_server());
  EXPECT_TRUE(Cluster(kSpec, TaskId{"ps", 0}).is_ps());
  EXPECT_FALSE(Cluster(kSpec, TaskId{"ps", 0}).is_worker());
  const Cluster evaluator(kSpec, TaskId{"evaluator", 0});
  EXPECT_TRUE(evaluator.is_evaluator());
  EXPECT_FALSE(evaluator.is_server());
}

TEST(Cluster, TheChiefWithoutAnEntryHasNoTask) {
  const Cluster program(kSpec);
  EXPECT_FALSE(program.is_server());
  EXPECT_FALSE(program.is_local());
  EXPECT_EQ(Cluster(kSpec, TaskId{"chief", 0}).task, std::nullopt);
  const ClusterSpec with_chief{{"chief", {"c:1"}}, {"worker", {"a:1"}}};
  const Cluster chief(with_chief, TaskId{"chief", 0});
  EXPECT_TRUE(chief.is_chief());
  EXPECT_FALSE(chief.is_server());
}

TEST(SimpleResolver, ReturnsTheGivenCluster) {
  const SimpleResolver resolver(kSpec, TaskId{"worker", 1});
  EXPECT_EQ(resolver.cluster().spec, kSpec);
  EXPECT_TRUE(resolver.is_server());
  EXPECT_FALSE(SimpleResolver(kSpec).is_server());
  const Cluster converted = resolver;
  EXPECT_EQ(converted.task, (TaskId{"worker", 1}));
}

TEST(SimpleResolver, RejectsATaskThatIsNotInTheSpec) {
  EXPECT_EQ(error_of(
                [] {
                  SimpleResolver(kSpec, TaskId{"worker", 5});
                },
                ErrorCode::kOutOfRange),
            "cluster spec: job 'worker' has no task 5; it has 2 tasks, 0 to 1");
}

TEST(TfConfigResolver, ReadsClusterAndTask) {
  const Cluster cluster = of_tf_config(R"({
    "cluster": {"worker": ["a:2222", "b:2222"], "ps": ["a:2221"]},
    "task": {"type": "worker", "index": 1},
    "rpc_layer": "grpc", "environment": "cloud"})");
  EXPECT_EQ(cluster.spec, kSpec);
  EXPECT_EQ(cluster.task, (TaskId{"worker", 1}));
}

TEST(TfConfigResolver, TheIndexMayBeAString) {
  EXPECT_EQ(of_tf_config(R"({"cluster": {"ps": {"3": "a:1"}},
                             "task": {"type": "ps", "index": "3"}})")
                .task,
            (TaskId{"ps", 3}));
}

TEST(TfConfigResolver, IsLocalWithoutTfConfig) {
  EXPECT_TRUE(TfConfigResolver(environment_of({})).cluster().is_local());
  EXPECT_TRUE(of_tf_config("").is_local());
  EXPECT_TRUE(of_tf_config("{}").is_local());
}

TEST(TfConfigResolver, TheEvaluatorNeedsNoCluster) {
  for (const char* text :
       {R"({"task": {"type": "evaluator", "index": 0}})", R"({"task": {"type": "evaluator"}})",
        R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator", "index": 0}})"}) {
    EXPECT_TRUE(of_tf_config(text).is_evaluator()) << text;
    EXPECT_FALSE(of_tf_config(text).is_local()) << text;
  }
}

TEST(TfConfigResolver, IsTheChiefsProgramWithoutATask) {
  const Cluster cluster = of_tf_config(R"({"cluster": {"worker": ["a:1"]}})");
  EXPECT_EQ(cluster.task, std::nullopt);
  EXPECT_FALSE(cluster.is_local());
}

TEST(WrongTfConfig, NotJson) {
  EXPECT_EQ(problem("{\"cluster\": "), "TF_CONFIG is not valid JSON at line 1, column 13");
  EXPECT_EQ(problem("7"),
            "TF_CONFIG: is not an object; write {\"cluster\": {...}, \"task\": {\"type\": ..., "
            "\"index\": ...}}");
}

TEST(WrongTfConfig, BadSpec) {
  EXPECT_EQ(problem(R"({"cluster": {"worker": ["a:1", "b"]}})"),
            "TF_CONFIG: cluster spec: job 'worker', task 1: address 'b' has no port; write "
            "host:port");
  EXPECT_EQ(
      problem(R"({"cluster": {"master": ["a:1"]}})"),
      "TF_CONFIG: cluster spec: job 'master' is not a valid role; the roles are worker, chief, ps "
      "and evaluator");
}

TEST(WrongTfConfig, BadTask) {
  const std::string start = R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": )";
  EXPECT_EQ(problem(start + R"({"type": "worker", "index": 2}})", ErrorCode::kOutOfRange),
            "TF_CONFIG: cluster spec: job 'worker' has no task 2; it has 2 tasks, 0 to 1");
  EXPECT_EQ(
      problem(start + R"({"type": "ps", "index": 0}})", ErrorCode::kNotFound),
      "TF_CONFIG: cluster spec: there is no job 'ps'; it has worker. Add the job, or check its "
      "name");
  EXPECT_EQ(
      problem(start + R"({"type": "master", "index": 0}})"),
      "TF_CONFIG: task type 'master' is not a valid role; the roles are worker, chief, ps and "
      "evaluator");
  EXPECT_EQ(problem(start + R"({"type": "evaluator", "index": 1}})", ErrorCode::kOutOfRange),
            "TF_CONFIG: task index 1: a cluster has one evaluator at most, with index 0");
  EXPECT_EQ(problem(start + R"({"type": "worker", "index": "one"}})"),
            "TF_CONFIG: key 'task.index': \"one\" is not a valid index");
  EXPECT_EQ(problem(start + R"({"type": "worker", "index": -1}})"),
            "TF_CONFIG: key 'task.index': -1 is not a valid index");
  EXPECT_EQ(
      problem(start + R"({"type": 3}})"),
      "TF_CONFIG: key 'task.type': 3 is not a valid role; the roles are worker, chief, ps and "
      "evaluator");
  EXPECT_EQ(problem(start + R"("worker"})"),
            "TF_CONFIG: key 'task': \"worker\" is not an object; write {\"type\": \"worker\", "
            "\"index\": 0}");
  EXPECT_EQ(problem(start + R"({"type": "worker"}})"),
            "TF_CONFIG: task type 'worker' needs a task index");
  EXPECT_EQ(problem(start + R"({"index": 1}})"), "TF_CONFIG: a task index needs a task type");
}

TEST(WrongTfConfig, ATaskButNoCluster) {
  EXPECT_EQ(problem(R"({"task": {"type": "worker", "index": 0}})"),
            "TF_CONFIG: task /job:worker/task:0 is not in a cluster; define one in TF_CONFIG's key "
            "'cluster' or in a file");
}

class ClusterFile : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& text) {
    const std::string path = folder_ / "cluster.json";
    std::ofstream(path) << text;
    return path;
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("cluster_test." + std::to_string(getpid()));
};

TEST_F(ClusterFile, HoldsTheClusterWithOrWithoutItsKey) {
  const std::string bare = kSpec.to_json();
  for (const std::string& text : {bare, "{\"cluster\": " + bare + "}"}) {
    const ClusterFileResolver resolver(file(text), TaskId{"ps", 0});
    EXPECT_EQ(resolver.cluster().spec, kSpec);
    EXPECT_TRUE(resolver.is_server());
  }
}

TEST_F(ClusterFile, ErrorsNameTheFile) {
  const auto file_problem = [&](const std::string& text) {
    const std::string path = file(text);
    const std::string message = error_of([&] { ClusterFileResolver resolver(path); });
    const std::string start = "cluster file '" + path + "': ";
    EXPECT_EQ(message.substr(0, start.size()), start);
    return message.substr(start.size());
  };
  EXPECT_EQ(file_problem("{\n,}"), "its text is not valid JSON at line 2, column 1");
  EXPECT_EQ(file_problem("[]"),
            "cluster spec: is not an object of jobs; write {\"worker\": [\"host:port\"]}");
  EXPECT_EQ(file_problem(R"({"worker": ["a:1", "a:1"]})"),
            "cluster spec: job 'worker', task 1: address 'a:1' is already used by "
            "/job:worker/task:0; every task needs its own");
  EXPECT_EQ(file_problem(R"({"cluster": {}, "task": {"type": "worker", "index": 0}})"),
            "key 'task' does not belong in a file that all tasks share; use --task_type and "
            "--task_index");
  EXPECT_EQ(file_problem(std::string((16 << 20) + 1, ' ')), "is larger than 16 MiB");
}

TEST_F(ClusterFile, MustBeReadable) {
  const std::string missing = folder_ / "missing.json";
  EXPECT_EQ(error_of([&] { ClusterFileResolver resolver(missing); }, ErrorCode::kNotFound),
            "cluster file '" + missing + "': cannot be read: No such file or directory");
  EXPECT_EQ(error_of([&] { ClusterFileResolver resolver(folder_); }, ErrorCode::kNotFound),
            "cluster file '" + folder_.string() + "': cannot be read: Is a directory");
}

}  // namespace
}  // namespace trireme
