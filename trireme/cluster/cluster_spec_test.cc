#include "trireme/cluster/cluster_spec.h"

#include "trireme/cluster/expect_error.h"

namespace trireme {
namespace {

std::string problem(const std::string& json, ErrorCode code = ErrorCode::kInvalidArgument) {
  return error_of([&] { ClusterSpec::from_json(json); }, code);
}

TEST(ClusterSpec, MapsJobsToAddresses) {
  const ClusterSpec spec{{"worker", {"a:2222", "b:2222"}}, {"ps", {"a:2221"}}};
  EXPECT_EQ(spec.jobs(), (std::vector<std::string>{"ps", "worker"}));
  EXPECT_EQ(spec.num_tasks("worker"), 2);
  EXPECT_EQ(spec.num_tasks("chief"), 0);
  EXPECT_EQ(spec.address({"worker", 1}), "b:2222");
  EXPECT_TRUE(spec.has_task({"ps", 0}));
  EXPECT_FALSE(spec.has_task({"ps", 1}));
  EXPECT_FALSE(spec.has_task({"chief", 0}));
}

TEST(ClusterSpec, OrderDoesNotDependOnHowItIsWritten) {
  const ClusterSpec one{{"worker", {"a:2", "b:2"}}, {"ps", {"a:1"}}, {"chief", {"c:1"}}};
  const ClusterSpec two{{"chief", {"c:1"}}, {"ps", {"a:1"}}, {"worker", {{1, "b:2"}, {0, "a:2"}}}};
  EXPECT_EQ(one, two);
  EXPECT_EQ(one.all_tasks(),
            (std::vector<TaskId>{{"chief", 0}, {"ps", 0}, {"worker", 0}, {"worker", 1}}));
  EXPECT_EQ(one.all_tasks(), two.all_tasks());
}

TEST(ClusterSpec, JobsMayBeSparse) {
  const ClusterSpec spec{{"worker", {{7, "b:1"}, {2, "a:1"}}}};
  EXPECT_EQ(spec.num_tasks("worker"), 2);
  EXPECT_EQ(spec.tasks("worker"), (std::vector<TaskId>{{"worker", 2}, {"worker", 7}}));
  EXPECT_EQ(spec.address({"worker", 7}), "b:1");
  EXPECT_EQ(spec.to_json(), R"({"worker":{"2":"a:1","7":"b:1"}})");
  EXPECT_EQ(ClusterSpec::from_json(spec.to_json()), spec);
}

TEST(ClusterSpec, ReadsTheJsonThatItWrites) {
  const ClusterSpec spec{{"worker", {"a:2222", "[::1]:2222"}}, {"ps", {"a:2221"}}};
  EXPECT_EQ(spec.to_json(), R"({"ps":["a:2221"],"worker":["a:2222","[::1]:2222"]})");
  EXPECT_EQ(ClusterSpec::from_json(spec.to_json()), spec);
  EXPECT_EQ(ClusterSpec().to_json(), "{}");
  EXPECT_TRUE(ClusterSpec::from_json("{}").empty());
}

TEST(ClusterSpec, LeavesOutJobsWithoutTasks) {
  EXPECT_EQ(ClusterSpec::from_json(R"({"worker":["a:1"],"ps":[]})"),
            (ClusterSpec{{"worker", {"a:1"}}}));
  EXPECT_TRUE((ClusterSpec{{"ps", {}}}).empty());
}

TEST(ClusterSpec, WithoutEvaluatorLeavesOutTheEvaluator) {
  const ClusterSpec spec{{"worker", {"a:1"}}, {"evaluator", {"b:1"}}};
  EXPECT_EQ(spec.without_evaluator(), (ClusterSpec{{"worker", {"a:1"}}}));
  EXPECT_EQ(spec.address({"evaluator", 0}), "b:1");
}

TEST(ClusterSpec, TheChiefServesOnlyWhereItTrainsAsAWorker) {
  const ClusterSpec together{{"worker", {"a:1"}}, {"chief", {"b:1"}}, {"evaluator", {"c:1"}}};
  EXPECT_TRUE(together.serves({"worker", 0}));
  EXPECT_TRUE(together.serves({"chief", 0}));
  EXPECT_FALSE(together.serves({"evaluator", 0}));
  EXPECT_FALSE(together.serves({"worker", 1}));
  const ClusterSpec servers{{"worker", {"a:1"}}, {"chief", {"b:1"}}, {"ps", {"c:1"}}};
  EXPECT_TRUE(servers.serves({"ps", 0}));
  EXPECT_TRUE(servers.serves({"worker", 0}));
  EXPECT_FALSE(servers.serves({"chief", 0}));
}

TEST(ClusterSpec, BuildsManyTasksFromAMap) {
  std::vector<std::string> addresses;
  for (int i = 0; i < 1000; ++i) addresses.push_back("host" + std::to_string(i) + ":2222");
  const std::map<std::string, TaskAddresses> jobs = {{"worker", addresses}};
  EXPECT_EQ(ClusterSpec(jobs).address({"worker", 999}), "host999:2222");
}

TEST(WrongSpec, UnknownRole) {
  EXPECT_EQ(error_of([] {
              ClusterSpec{{"master", {"a:1"}}};
            }),
            "cluster spec: job 'master' is not a valid role; the roles are worker, chief, ps and "
            "evaluator");
}

TEST(WrongSpec, TwoChiefs) {
  EXPECT_EQ(error_of([] {
              ClusterSpec{{"chief", {"a:1", "b:1"}}};
            }),
            "cluster spec: job 'chief' has 2 tasks; a cluster has one chief at most");
}

TEST(WrongSpec, TwoEvaluators) {
  EXPECT_EQ(error_of([] {
              ClusterSpec{{"evaluator", {"a:1", "b:1"}}};
            }),
            "cluster spec: job 'evaluator' has 2 tasks; a cluster has one evaluator at most");
}

TEST(WrongSpec, ChiefWithAnIndex) {
  EXPECT_EQ(error_of([] {
              ClusterSpec{{"chief", {{1, "a:1"}}}};
            }),
            "cluster spec: job 'chief', task 1: the only chief is task 0");
}

TEST(WrongSpec, DuplicateAddressNamesBothTasks) {
  EXPECT_EQ(error_of([] {
              ClusterSpec{{"worker", {"b:2222", "A:2222"}}, {"ps", {"a:2222"}}};
            }),
            "cluster spec: job 'worker', task 1: address 'A:2222' is already used by "
            "/job:ps/task:0; every task needs its own");
}

TEST(WrongSpec, NoPort) {
  EXPECT_EQ(error_of([] {
              ClusterSpec{{"worker", {"a:2222", "b"}}};
            }),
            "cluster spec: job 'worker', task 1: address 'b' has no port; write host:port");
}

TEST(ClusterSpec, PortsThatServersPickAreNotDuplicates) {
  const ClusterSpec spec{{"worker", {"a:0", "a:0"}}, {"ps", {"a:1"}}};
  EXPECT_EQ(spec.address({"worker", 1}), "a:0");
  EXPECT_EQ(ClusterSpec::from_json(spec.to_json()), spec);
}

TEST(WrongSpec, PortThatOnlyItsServerKnows) {
  const ClusterSpec spec{{"worker", {"a:1", "a:0"}}};
  EXPECT_EQ(error_of([&] { spec.check_ports(); }),
            "cluster spec: job 'worker', task 1: the port of 'a:0' is not known, since the task's "
            "server picks it; give the port that the server listens on");
  ClusterSpec{{"worker", {"a:1", "a:2"}}}.check_ports();
}

TEST(WrongSpec, NoHost) {
  EXPECT_EQ(error_of([] {
              ClusterSpec{{"ps", {":2222"}}};
            }),
            "cluster spec: job 'ps', task 0: address ':2222' has no host; write host:port");
}

TEST(WrongSpec, IndexOutOfRange) {
  const ClusterSpec spec{{"worker", {"a:1", "b:1"}}, {"ps", {"c:1"}}};
  EXPECT_EQ(error_of(
                [&] {
                  spec.address({"worker", 2});
                },
                ErrorCode::kOutOfRange),
            "cluster spec: job 'worker' has no task 2; it has 2 tasks, 0 to 1");
  EXPECT_EQ(error_of(
                [&] {
                  spec.address({"ps", 1});
                },
                ErrorCode::kOutOfRange),
            "cluster spec: job 'ps' has no task 1; it has 1 task, 0");
  const ClusterSpec sparse{{"worker", {{2, "a:1"}, {7, "b:1"}}}};
  EXPECT_EQ(error_of(
                [&] {
                  sparse.address({"worker", 3});
                },
                ErrorCode::kOutOfRange),
            "cluster spec: job 'worker' has no task 3; it has 2 tasks, 2 to 7 with gaps");
}

TEST(WrongSpec, NoSuchJob) {
  const ClusterSpec spec{{"worker", {"a:1"}}, {"ps", {"c:1"}}};
  EXPECT_EQ(error_of(
                [&] {
                  spec.address({"chief", 0});
                },
                ErrorCode::kNotFound),
            "cluster spec: there is no job 'chief'; it has ps, worker. Add the job, or check its "
            "name");
  EXPECT_EQ(error_of(
                [] {
                  ClusterSpec().address({"ps", 0});
                },
                ErrorCode::kNotFound),
            "cluster spec: there is no job 'ps'; it is empty. Add the job, or check its name");
}

TEST(WrongSpec, IndexBeyondTheLimit) {
  EXPECT_EQ(error_of(
                [] {
                  ClusterSpec{{"worker", {{-1, "a:1"}}}};
                },
                ErrorCode::kOutOfRange),
            "cluster spec: job 'worker': task index -1 is not from 0 to 65535");
  EXPECT_EQ(problem(R"({"worker": {"65536": "a:1"}})", ErrorCode::kOutOfRange),
            "cluster spec: job 'worker': task index 65536 is not from 0 to 65535");
}

TEST(WrongSpec, TooLargeOrTooDeep) {
  EXPECT_EQ(problem(R"({"ps": 4e615})"), "cluster spec: a number in it is too large");
  EXPECT_EQ(problem("{\"ps\": " + std::string(100000, '[') + std::string(100000, ']') + "}"),
            "cluster spec: nested deeper than 32");
}

TEST(WrongSpec, GivenTwice) {
  EXPECT_EQ(error_of([] {
              ClusterSpec{{"ps", {"a:1"}}, {"ps", {"b:1"}}};
            }),
            "cluster spec: job 'ps' is given twice");
  EXPECT_EQ(error_of([] {
              ClusterSpec{{"ps", {{3, "a:1"}, {3, "b:1"}}}};
            }),
            "cluster spec: job 'ps', task 3 is given twice; give each task of a job its own "
            "index");
  EXPECT_EQ(problem(R"({"ps": ["a:1"], "ps": ["b:1"]})"), "cluster spec: key 'ps' is given twice");
  EXPECT_EQ(problem(R"({"ps": {"1": "a:1", "01": "b:1"}})"),
            "cluster spec: job 'ps', task 1 is given twice; give each task of a job its own "
            "index");
}

TEST(WrongSpec, WrongJsonTypes) {
  EXPECT_EQ(problem("[]"),
            "cluster spec: is not an object of jobs; write {\"worker\": [\"host:port\"]}");
  EXPECT_EQ(problem(R"({"worker": "a:1"})"),
            "cluster spec: job 'worker': \"a:1\" is not a list of addresses; write [\"host:port\"] "
            "or, with gaps, {\"0\": \"host:port\"}");
  EXPECT_EQ(problem(R"({"worker": ["a:1", 2222]})"),
            "cluster spec: job 'worker', task 1: 2222 is not a valid address; write \"host:port\"");
  EXPECT_EQ(problem(R"({"worker": {"x": "a:1"}})"),
            "cluster spec: job 'worker': 'x' is not a valid task index");
}

TEST(WrongSpec, NotJson) {
  EXPECT_EQ(problem("{\n \"worker\": [\"a:1\",]\n}"),
            "cluster spec is not valid JSON at line 2, column 19");
  EXPECT_EQ(problem(""), "cluster spec is not valid JSON at line 1, column 1");
  EXPECT_EQ(problem("{"), "cluster spec is not valid JSON at line 1, column 2");
  EXPECT_EQ(problem("{\"worker\": [\"\xff:1\"]}").substr(0, 30), "cluster spec is not valid JSON");
}

}  // namespace
}  // namespace trireme
