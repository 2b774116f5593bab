// `trireme status` shows which tasks of a cluster answer, and names each one that does not with the
// reason, while real processes are killed, frozen and restarted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/integration/commands.h"
#include "trireme/base/ids.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/runtime/cluster_status.h"

namespace trireme {
namespace {

using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;

// All tests of this suite share one cluster, and each leaves it as it found it.
class ClusterTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ProcessClusterOptions options;
    options.flags = {"--devices", "cpu:2", "--threads", "1"};
    cluster_ = new ProcessCluster(options);
  }
  static void TearDownTestSuite() {
    delete cluster_;
    cluster_ = nullptr;
  }

  CompletedProcess status(std::vector<std::string> flags = {}) {
    flags.insert(flags.begin(), "status");
    return run_trireme(flags, cluster_->tf_config({"chief", 0}));
  }

  static ProcessCluster* cluster_;
};

ProcessCluster* ClusterTest::cluster_ = nullptr;

TEST_F(ClusterTest, StatusShowsEveryTask) {
  const CompletedProcess shown = status();
  EXPECT_EQ(shown.status.code, 0);
  EXPECT_EQ(shown.stderr_text, "");
  for (const TaskId& task : cluster_->spec().all_tasks()) {
    EXPECT_THAT(shown.stdout_text,
                ContainsRegex(absl::StrCat(task.to_string(), " +", cluster_->spec().address(task),
                                           " +", task.job, " +",
                                           format_incarnation(cluster_->describe(task).incarnation),
                                           " +[0-9.]+m?s +0\\.[0-9]+\\.[0-9]+ +cpu:0,cpu:1\n")));
  }
  EXPECT_THAT(shown.stdout_text, EndsWith("\n5 of 5 tasks answer\n"));
}

TEST_F(ClusterTest, StatusPrintsJson) {
  const CompletedProcess shown = status({"--json"});
  EXPECT_EQ(shown.status.code, 0);
  const auto tasks = nlohmann::json::parse(shown.stdout_text)["tasks"];
  ASSERT_EQ(tasks.size(), 5u);
  EXPECT_EQ(tasks[0]["task"], "/job:ps/task:0");
  EXPECT_EQ(tasks[0]["up"], true);
  EXPECT_EQ(tasks[0]["pid"], cluster_->pid({"ps", 0}));
  EXPECT_EQ(tasks[0]["devices"][1], "/job:ps/task:0/cpu:1");
}

TEST_F(ClusterTest, StatusShowsOneServer) {
  const CompletedProcess shown =
      run_trireme({"status", "--target", cluster_->target({"worker", 2})});
  EXPECT_EQ(shown.status.code, 0);
  EXPECT_THAT(shown.stdout_text, HasSubstr("/job:worker/task:2  127.0.0.1:"));
  EXPECT_THAT(shown.stdout_text, EndsWith("\n1 of 1 task answers\n"));
}

// Returns a TF_CONFIG with a cluster's tasks and a chief.
std::string with_chief(const ProcessCluster& cluster, const std::string& chief) {
  auto config = nlohmann::json::parse(cluster.tf_config({"chief", 0}));
  config["cluster"]["chief"] = {chief};
  return config.dump();
}

TEST_F(ClusterTest, TheChiefNextToParameterServersNeedNotAnswer) {
  const PortReservation port = value_or_throw(PortReservation::make());
  const std::string config = with_chief(*cluster_, port.address());
  const CompletedProcess shown = run_trireme({"status"}, config);
  EXPECT_EQ(shown.status.code, 0);
  EXPECT_THAT(shown.stdout_text,
              HasSubstr(absl::StrCat("/job:chief/task:0   ", port.address(),
                                     "  chief   runs no server, and needs none\n")));
  EXPECT_THAT(shown.stdout_text, EndsWith("\n5 of 5 tasks answer\n"));

  const CompletedProcess waited = run_trireme({"status", "--wait", "1000"}, config);
  EXPECT_EQ(waited.status.code, 0);
  EXPECT_EQ(waited.stderr_text, "");

  const CompletedProcess json = run_trireme({"status", "--json"}, config);
  EXPECT_EQ(json.status.code, 0);
  const auto tasks = nlohmann::json::parse(json.stdout_text)["tasks"];
  ASSERT_EQ(tasks.size(), 6u);
  EXPECT_EQ(tasks[0]["task"], "/job:chief/task:0");
  EXPECT_EQ(tasks[0]["serves"], false);
  EXPECT_EQ(tasks[0]["up"], false);
  EXPECT_EQ(tasks[1]["serves"], true);
}

TEST_F(ClusterTest, AChiefWithAServerIsShown) {
  const PortReservation port = value_or_throw(PortReservation::make());
  const std::string config = with_chief(*cluster_, port.address());
  RunningCommand chief(trireme_command({"server"}, config));
  chief.wait_for("/job:chief/task:0 serves at");
  const CompletedProcess shown = run_trireme({"status"}, config);
  EXPECT_EQ(shown.status.code, 0);
  EXPECT_THAT(shown.stdout_text, ContainsRegex("/job:chief/task:0 +[0-9.:]+ +chief +[0-9a-f]{16}"));
  EXPECT_THAT(shown.stdout_text, EndsWith("\n6 of 6 tasks answer\n"));
}

TEST_F(ClusterTest, AKilledTaskIsNamedAndComesBackWithANewIncarnation) {
  const TaskId task = {"worker", 1};
  const uint64_t before = cluster_->describe(task).incarnation;
  cluster_->kill(task);
  const CompletedProcess shown = status();
  EXPECT_EQ(shown.status.code, 1);
  EXPECT_THAT(shown.stdout_text,
              HasSubstr(absl::StrCat("/job:worker/task:1  ", cluster_->spec().address(task),
                                     "  worker  unreachable: Connection refused\n")));
  EXPECT_THAT(shown.stdout_text, EndsWith("\n4 of 5 tasks answer; missing: /job:worker/task:1\n"));
  cluster_->restart(task);
  EXPECT_NE(cluster_->describe(task).incarnation, before);
  EXPECT_EQ(status().status.code, 0);
}

TEST_F(ClusterTest, AFrozenTaskIsNamedAndKeepsItsIncarnation) {
  const TaskId task = {"ps", 0};
  const uint64_t before = cluster_->describe(task).incarnation;
  cluster_->freeze(task);
  const CompletedProcess shown = status({"--timeout", "1"});
  cluster_->thaw(task);
  EXPECT_EQ(shown.status.code, 1);
  EXPECT_THAT(shown.stdout_text,
              HasSubstr("  ps      no answer within 1.0s: the task is stopped, busy or cut off\n"));
  EXPECT_THAT(shown.stdout_text, EndsWith("\n4 of 5 tasks answer; missing: /job:ps/task:0\n"));
  EXPECT_EQ(cluster_->describe(task).incarnation, before);
}

TEST_F(ClusterTest, ASecondServerOfATaskFailsAndNamesTheFirst) {
  const TaskId task = {"worker", 0};
  const CompletedProcess second = run_trireme({"server"}, cluster_->tf_config(task));
  EXPECT_EQ(second.status.code, 1);
  EXPECT_EQ(
      second.stderr_text,
      absl::StrCat("trireme: /job:worker/task:0 cannot listen on ", cluster_->spec().address(task),
                   ": the address is held by /job:worker/task:0 (pid ", cluster_->pid(task),
                   ", incarnation ", format_incarnation(cluster_->describe(task).incarnation),
                   "). Stop that process, or give one of the two another address\n"));
}

TEST_F(ClusterTest, SigtermStopsCleanly) {
  const TaskId task = {"worker", 2};
  const std::string first_line = cluster_->logs(task).front();
  EXPECT_THAT(first_line,
              HasSubstr(absl::StrCat("/job:worker/task:2 serves at ",
                                     cluster_->spec().address(task), " (incarnation ")));
  EXPECT_THAT(first_line,
              HasSubstr(absl::StrCat(", pid ", cluster_->pid(task), ", devices cpu:0,cpu:1")));
  cluster_->stop(task);  // throws unless it exits with 0
  EXPECT_THAT(cluster_->logs(task).back(), EndsWith("/job:worker/task:2 has stopped"));
  cluster_->restart(task);
}

TEST(Cluster, TasksMayStartInAnyOrderAndWaitNamesTheMissingOnes) {
  ProcessClusterOptions options;
  options.workers = 1;
  options.ps = 1;
  options.start = false;
  ProcessCluster cluster(options);
  RunningCommand waiting(
      trireme_command({"status", "--wait", "50"}, cluster.tf_config({"chief", 0})));
  EXPECT_EQ(waiting.wait_for("trireme: waiting for (.*)"),
            list_tasks(cluster.spec(), cluster.spec().all_tasks()));
  cluster.start({"worker", 0});
  waiting.wait_for("waiting for /job:ps/task:0 \\([0-9.:]*\\)\n");
  cluster.start({"ps", 0});
  EXPECT_EQ(waiting.wait(), ExitStatus{}) << waiting.text();
  EXPECT_THAT(waiting.text(), EndsWith("\n2 of 2 tasks answer\n"));
}

TEST(Cluster, WaitEndsAfterItsTimeout) {
  ProcessClusterOptions options;
  options.workers = 1;
  options.ps = 0;
  options.start = false;
  ProcessCluster cluster(options);
  const CompletedProcess shown =
      run_trireme({"status", "--wait", "0.3"}, cluster.tf_config({"chief", 0}));
  EXPECT_EQ(shown.status.code, 1);
  EXPECT_THAT(shown.stdout_text, EndsWith("\n0 of 1 task answers; missing: /job:worker/task:0\n"));
}

TEST(Cluster, TheChiefOfWorkersThatTrainTogetherMustAnswer) {
  ProcessClusterOptions options;
  options.workers = 1;
  options.ps = 0;
  ProcessCluster cluster(options);
  const PortReservation port = value_or_throw(PortReservation::make());
  const CompletedProcess shown = run_trireme({"status"}, with_chief(cluster, port.address()));
  EXPECT_EQ(shown.status.code, 1);
  EXPECT_THAT(shown.stdout_text, HasSubstr("  chief   unreachable: Connection refused\n"));
  EXPECT_THAT(shown.stdout_text, EndsWith("\n1 of 2 tasks answer; missing: /job:chief/task:0\n"));
}

TEST(Cluster, StatusNamesTheTaskThatServesAnAddressOfAnother) {
  ProcessClusterOptions options;
  options.workers = 1;
  options.ps = 0;
  ProcessCluster cluster(options);
  const std::string address = cluster.spec().address({"worker", 0});
  const CompletedProcess shown =
      run_trireme({"status"}, absl::StrCat("{\"cluster\": {\"ps\": [\"", address, "\"]}}"));
  EXPECT_EQ(shown.status.code, 1);
  EXPECT_THAT(shown.stdout_text, HasSubstr(absl::StrCat("its address ", address,
                                                        " is held by /job:worker/task:0 (pid ",
                                                        cluster.pid({"worker", 0}), " on ")));
}

}  // namespace
}  // namespace trireme
