#include "trireme/cluster/expect_error.h"
#include "trireme/cluster/resolver.h"

namespace trireme {
namespace {

using Variables = std::map<std::string, std::string>;

// Returns the variables that torchrun sets for rank 1 of two on one node, with the given changes.
Variables variables(const Variables& changes) {
  Variables result = {{"MASTER_ADDR", "localhost"},
                      {"MASTER_PORT", "29500"},
                      {"RANK", "1"},
                      {"WORLD_SIZE", "2"},
                      {"LOCAL_WORLD_SIZE", "2"}};
  for (const auto& [name, value] : changes) result[name] = value;
  return result;
}

Cluster resolved(const Variables& changes) {
  return TorchrunResolver(environment_of(variables(changes))).cluster();
}

std::string problem(const Variables& changes) {
  return error_of([&] { resolved(changes); });
}

TEST(TorchrunResolver, OneNodeListensAfterTheLaunchersPort) {
  const Cluster cluster = resolved({});
  EXPECT_EQ(cluster.spec, (ClusterSpec{{"worker", {"localhost:29501", "localhost:29502"}}}));
  EXPECT_EQ(cluster.task, (TaskId{"worker", 1}));
}

TEST(TorchrunResolver, TakesSeveralNodesFromTriremeNodes) {
  const Cluster cluster =
      resolved({{"WORLD_SIZE", "4"}, {"RANK", "3"}, {"TRIREME_NODES", "a,::1"}});
  EXPECT_EQ(cluster.spec,
            (ClusterSpec{{"worker", {"a:29501", "a:29502", "[::1]:29501", "[::1]:29502"}}}));
  EXPECT_EQ(cluster.task, (TaskId{"worker", 3}));
}

TEST(WrongTorchrun, SeveralNodesWithoutTheirNames) {
  EXPECT_EQ(problem({{"WORLD_SIZE", "4"}}),
            "torchrun: TRIREME_NODES is not set, and WORLD_SIZE over LOCAL_WORLD_SIZE makes 2 "
            "nodes, of which MASTER_ADDR='localhost' names one; set "
            "TRIREME_NODES=host0,host1,... in the order of the ranks");
  EXPECT_EQ(problem({{"WORLD_SIZE", "4"}, {"TRIREME_NODES", "a"}}),
            "torchrun: TRIREME_NODES='a' names 1 host, and WORLD_SIZE over LOCAL_WORLD_SIZE makes "
            "2 nodes");
}

TEST(WrongTorchrun, BadHosts) {
  EXPECT_EQ(problem({{"WORLD_SIZE", "4"}, {"TRIREME_NODES", "a,"}}),
            "torchrun: TRIREME_NODES='a,': cluster spec: job 'worker', task 2: address ':29501' "
            "has no host; write host:port");
  EXPECT_EQ(problem({{"WORLD_SIZE", "4"}, {"TRIREME_NODES", "a,a"}}),
            "torchrun: TRIREME_NODES='a,a': cluster spec: job 'worker', task 2: address 'a:29501' "
            "is already used by /job:worker/task:0; every task needs its own");
  EXPECT_EQ(problem({{"MASTER_ADDR", "a b"}}),
            "torchrun: MASTER_ADDR='a b': cluster spec: job 'worker', task 0: address "
            "'a b:29501' has a host with characters that are not allowed in a host name");
}

TEST(WrongTorchrun, HalfSet) {
  EXPECT_EQ(problem({{"RANK", ""}}),
            "torchrun: RANK is not set; it numbers this process among WORLD_SIZE");
  EXPECT_EQ(problem({{"WORLD_SIZE", ""}}), "torchrun: WORLD_SIZE is not set; it counts the ranks");
  EXPECT_EQ(problem({{"LOCAL_WORLD_SIZE", ""}}),
            "torchrun: LOCAL_WORLD_SIZE is not set; it counts the ranks on one node, as torchrun "
            "does");
  EXPECT_EQ(problem({{"MASTER_ADDR", ""}}),
            "torchrun: MASTER_ADDR is not set; it is the host of rank 0");
  EXPECT_EQ(problem({{"MASTER_PORT", ""}}),
            "torchrun: MASTER_PORT is not set; the ranks of a node listen on the ports after it");
}

TEST(WrongTorchrun, BadNumbers) {
  EXPECT_EQ(problem({{"RANK", "2"}}),
            "torchrun: RANK='2' is not a number from 0 to 1; it numbers this process among "
            "WORLD_SIZE");
  EXPECT_EQ(
      problem({{"WORLD_SIZE", "1000000000"}}),
      "torchrun: WORLD_SIZE='1000000000' is not a number from 1 to 65536; it counts the ranks");
  EXPECT_EQ(
      problem({{"WORLD_SIZE", "3"}}),
      "torchrun: WORLD_SIZE=3 is not a multiple of LOCAL_WORLD_SIZE=2; every node must run the "
      "same number of ranks");
  EXPECT_EQ(problem({{"MASTER_PORT", "65534"}}),
            "torchrun: MASTER_PORT='65534' is not a number from 1 to 65533; the ranks of a node "
            "listen on the ports after it");
}

}  // namespace
}  // namespace trireme
