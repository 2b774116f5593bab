#include "trireme/cluster/expect_error.h"
#include "trireme/cluster/resolver.h"
#include "trireme/cluster/slurm_nodelist.h"

namespace trireme {
namespace {

using Names = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

// Returns the variables that srun sets for rank 2 of three on two nodes, with the given changes.
Variables variables(const Variables& changes) {
  Variables result = {{"SLURM_PROCID", "2"},
                      {"SLURM_NTASKS", "3"},
                      {"SLURM_STEP_NODELIST", "node[1-2]"},
                      {"SLURM_STEP_TASKS_PER_NODE", "2,1"}};
  for (const auto& [name, value] : changes) result[name] = value;
  return result;
}

Cluster resolved(const Variables& changes, const SlurmOptions& options = {}) {
  return SlurmResolver(options, environment_of(variables(changes))).cluster();
}

std::string problem(const Variables& changes, const SlurmOptions& options = {}) {
  return error_of([&] { resolved(changes, options); });
}

TEST(SlurmNodelist, ExpandsRanges) {
  EXPECT_EQ(internal::expand_nodelist("node[01-03,7],gpu1"),
            (Names{"node01", "node02", "node03", "node7", "gpu1"}));
  EXPECT_EQ(internal::expand_nodelist("n[098-101]-ib"),
            (Names{"n098-ib", "n099-ib", "n100-ib", "n101-ib"}));
  EXPECT_EQ(internal::expand_nodelist("r[0-1]n[2,4]"), (Names{"r0n2", "r0n4", "r1n2", "r1n4"}));
  EXPECT_EQ(internal::expand_nodelist("solo"), Names{"solo"});
}

TEST(SlurmNodelist, ExpandsTasksPerNode) {
  EXPECT_EQ(internal::expand_tasks_per_node("2(x3),1"), (std::vector<int>{2, 2, 2, 1}));
  EXPECT_EQ(internal::expand_tasks_per_node("4"), std::vector<int>{4});
}

TEST(SlurmNodelist, RejectsMalformedOrHugeLists) {
  const auto list_problem = [](const std::string& text) {
    return error_of([&] { internal::expand_nodelist(text); });
  };
  EXPECT_EQ(list_problem("[0-999999999]"), "the range '0-999999999' has more than 65536 nodes");
  EXPECT_EQ(list_problem("a[0-65535],b"), "it has more than 65536 nodes");
  EXPECT_EQ(list_problem("a[0-65535]b[0-65535]c[0-65535]"), "it has more than 65536 nodes");
  EXPECT_EQ(list_problem("a[0-99999999999]"), "'0-99999999999' is not a valid range of numbers");
  EXPECT_EQ(list_problem("a[3-1]"), "'3-1' is not a valid range of numbers");
  EXPECT_EQ(list_problem("a[]"), "'' is not a valid range of numbers");
  EXPECT_EQ(list_problem("a[1,]"), "'' is not a valid range of numbers");
  EXPECT_EQ(list_problem("a[1"), "a '[' has no ']'");
  EXPECT_EQ(list_problem("a]"), "brackets do not match");
  EXPECT_EQ(list_problem("a[[1]]"), "brackets do not match");
  EXPECT_EQ(list_problem("a,,b"), "a name is empty");
  EXPECT_EQ(list_problem("[0-9]" + std::string(300, 'a')), "a name is too long");
  EXPECT_EQ(list_problem("[" + std::string(300, '0') + "-9]"), "a number is too long");
  for (const std::string text :
       {"", "x", "2(x)", "2(x3", "2x3", "(x3)", "-1", "1(x999999)", "2(x3)4"}) {
    const std::string message = error_of([&] { internal::expand_tasks_per_node(text); });
    EXPECT_EQ(message.substr(text.size() + 2), " is not a valid number of tasks; write 2 or 2(x3)")
        << text;
  }
}

TEST(SlurmResolver, AllRanksAreWorkersByDefault) {
  const Cluster cluster = resolved({});
  EXPECT_EQ(cluster.spec, (ClusterSpec{{"worker", {"node1:8888", "node1:8889", "node2:8888"}}}));
  EXPECT_EQ(cluster.task, (TaskId{"worker", 2}));
}

TEST(SlurmResolver, JobsTakeTheRanksInOrder) {
  const Cluster cluster = resolved({}, {.jobs = {{"ps", 1}, {"worker", 2}}, .port_base = 2222});
  EXPECT_EQ(cluster.spec,
            (ClusterSpec{{"ps", {"node1:2222"}}, {"worker", {"node1:2223", "node2:2222"}}}));
  EXPECT_EQ(cluster.task, (TaskId{"worker", 1}));
  EXPECT_TRUE(cluster.is_server());
}

TEST(SlurmResolver, FallsBackToTheJobsVariables) {
  const Cluster cluster = resolved({{"SLURM_STEP_NODELIST", ""},
                                    {"SLURM_STEP_TASKS_PER_NODE", ""},
                                    {"SLURM_JOB_NODELIST", "x,y,z"},
                                    {"SLURM_TASKS_PER_NODE", "1(x3)"}});
  EXPECT_EQ(cluster.spec, (ClusterSpec{{"worker", {"x:8888", "y:8888", "z:8888"}}}));
}

TEST(WrongSlurm, HalfSet) {
  EXPECT_EQ(problem({{"SLURM_NTASKS", ""}}), "Slurm: SLURM_NTASKS is not set; srun sets it");
  EXPECT_EQ(problem({{"SLURM_PROCID", ""}}), "Slurm: SLURM_PROCID is not set; srun sets it");
  EXPECT_EQ(problem({{"SLURM_STEP_NODELIST", ""}}),
            "Slurm: SLURM_JOB_NODELIST is not set; nor is SLURM_STEP_NODELIST; run the program "
            "with srun");
}

TEST(WrongSlurm, BadValues) {
  EXPECT_EQ(problem({{"SLURM_PROCID", "3"}}),
            "Slurm: SLURM_PROCID='3' is not a number from 0 to 2; srun sets it");
  EXPECT_EQ(problem({{"SLURM_STEP_NODELIST", "node[0-999999999]"}}),
            "Slurm: SLURM_STEP_NODELIST='node[0-999999999]': the range '0-999999999' has more "
            "than 65536 nodes");
  EXPECT_EQ(
      problem({{"SLURM_STEP_TASKS_PER_NODE", "2(y3)"}}),
      "Slurm: SLURM_STEP_TASKS_PER_NODE='2(y3)': '2(y3)' is not a valid number of tasks; write 2 "
      "or 2(x3)");
  EXPECT_EQ(problem({{"SLURM_STEP_TASKS_PER_NODE", "2,2"}}),
            "Slurm: SLURM_STEP_TASKS_PER_NODE='2,2' adds up to 4 tasks, but SLURM_NTASKS=3");
  EXPECT_EQ(problem({{"SLURM_STEP_TASKS_PER_NODE", "3"}}),
            "Slurm: SLURM_STEP_TASKS_PER_NODE='3' is for 1 node, but the node list has 2");
  EXPECT_EQ(problem({{"SLURM_STEP_NODELIST", "n,n"}}),
            "Slurm: SLURM_STEP_NODELIST='n,n': cluster spec: job 'worker', task 2: address "
            "'n:8888' is already used by /job:worker/task:0; every task needs its own");
}

TEST(WrongSlurm, AnotherDistributionThanBlock) {
  EXPECT_EQ(problem({{"SLURM_NODEID", "0"}}),
            "Slurm: SLURM_NODEID='0', but rank 2 would have 1 if Slurm filled node after node; run "
            "srun with --distribution=block");
  EXPECT_EQ(resolved({{"SLURM_NODEID", "1"}, {"SLURM_LOCALID", "0"}}).task, (TaskId{"worker", 2}));
}

TEST(WrongSlurm, BadOptions) {
  EXPECT_EQ(problem({}, {.jobs = {{"ps", 1}, {"worker", 1}}}),
            "Slurm: option jobs: 1 ps and 1 worker add up to 2 tasks, but SLURM_NTASKS=3");
  EXPECT_EQ(problem({}, {.jobs = {{"ps", -1}, {"worker", 4}}}),
            "Slurm: option jobs: job 'ps' has -1 tasks");
  EXPECT_EQ(problem({}, {.jobs = {{"server", 3}}}),
            "Slurm: option jobs: 'server' is not a valid role; the roles are worker, chief, ps and "
            "evaluator");
  EXPECT_EQ(
      problem({}, {.port_base = 65535}),
      "Slurm: option port_base: 65535 plus 1 is not a valid port; it must be from 1 to 65535");
}

}  // namespace
}  // namespace trireme
