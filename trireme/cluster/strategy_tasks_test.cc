#include "trireme/cluster/strategy_tasks.h"

#include <map>
#include <string>
#include <vector>

#include "trireme/cluster/expect_error.h"

namespace trireme::internal {
namespace {

const ClusterSpec kServed{{"worker", {"a:1", "b:1"}}, {"ps", {"c:1"}}};
const ClusterSpec kServedWithChief{{"chief", {"d:1"}}, {"worker", {"a:1", "b:1"}}, {"ps", {"c:1"}}};
const ClusterSpec kWorkers{{"worker", {"a:1", "b:1"}}};
const ClusterSpec kWorkersWithChief{{"chief", {"d:1"}}, {"worker", {"a:1", "b:1"}}};
const ClusterSpec kOneWorker{{"worker", {"a:1"}}};
const ClusterSpec kOneServedWorker{{"worker", {"a:1"}}, {"ps", {"c:1"}}};

TEST(StrategyName, FollowsFromTheCluster) {
  EXPECT_EQ(Cluster().strategy_name(), "default");
  EXPECT_EQ(Cluster(kServed).strategy_name(), "ps");
  EXPECT_EQ(Cluster(kServed, TaskId{"worker", 0}).strategy_name(), "ps");
  EXPECT_EQ(Cluster(kWorkers, TaskId{"worker", 0}).strategy_name(), "multi_worker_mirrored");
  EXPECT_EQ(Cluster(kWorkersWithChief, TaskId{"chief", 0}).strategy_name(),
            "multi_worker_mirrored");
  EXPECT_EQ(Cluster(kServed, TaskId{"evaluator", 0}).strategy_name(), "default");
  EXPECT_EQ(Cluster(ClusterSpec{{"evaluator", {"e:1"}}}).strategy_name(), "default");
  Cluster asked(kServed);
  asked.strategy = "mirrored";
  EXPECT_EQ(asked.strategy_name(), "mirrored");
  asked.task = TaskId{"evaluator", 0};
  EXPECT_EQ(asked.strategy_name(), "default") << "one script names a strategy for all";
}

TEST(IsServer, IsTrueForTasksThatTheChiefsProgramSendsWorkTo) {
  EXPECT_TRUE(Cluster(kServed, TaskId{"worker", 1}).is_server());
  EXPECT_TRUE(Cluster(kServed, TaskId{"ps", 0}).is_server());
  EXPECT_FALSE(Cluster(kServedWithChief, TaskId{"chief", 0}).is_server());
  EXPECT_FALSE(Cluster(kWorkers, TaskId{"worker", 1}).is_server()) << "it trains itself";
  Cluster asked(kServed, TaskId{"worker", 1});
  asked.strategy = "multi_worker_mirrored";
  EXPECT_FALSE(asked.is_server());
}

TEST(IsChief, IsTrueForOneProcessOfAJob) {
  struct Case {
    ClusterSpec spec;
    std::optional<TaskId> chief;
  };
  for (const auto& [spec, chief] : std::vector<Case>{{{}, std::nullopt},
                                                     {kServed, std::nullopt},
                                                     {kServedWithChief, TaskId{"chief", 0}},
                                                     {kWorkers, TaskId{"worker", 0}},
                                                     {kWorkersWithChief, TaskId{"chief", 0}},
                                                     {kOneWorker, TaskId{"worker", 0}}}) {
    EXPECT_TRUE(Cluster(spec, chief).is_chief()) << spec.to_json();
    for (const TaskId& task : spec.all_tasks()) {
      EXPECT_EQ(Cluster(spec, task).is_chief(), task == chief) << spec.to_json() << " " << task;
    }
  }
  EXPECT_TRUE(Cluster(kServed, TaskId{"chief", 0}).is_chief()) << "the program of trireme launch";
  const ClusterSpec sparse{{"worker", {{3, "a:1"}, {7, "b:1"}}}};
  EXPECT_TRUE(Cluster(sparse, TaskId{"worker", 3}).is_chief());
  EXPECT_FALSE(Cluster(kServed, TaskId{"evaluator", 0}).is_chief());
}

// The duties of the tasks under each strategy: t trains, s serves, e evaluates, - has none. The
// tasks are: the program without a task, chief 0, worker 0, worker 1, ps 0, evaluator 0; x stands
// for those that the spec does not have.
TEST(DutyOf, DependsOnStrategyClusterAndTask) {
  const std::vector<std::optional<TaskId>> tasks = {std::nullopt,        TaskId{"chief", 0},
                                                    TaskId{"worker", 0}, TaskId{"worker", 1},
                                                    TaskId{"ps", 0},     TaskId{"evaluator", 0}};
  const auto duties = [&](const ClusterSpec& spec, const std::string& strategy) {
    std::string all;
    for (const auto& task : tasks) {
      if (task && task->job != "evaluator" && !spec.has_task(*task)) {
        all += 'x';
      } else {
        all += std::map<Duty, char>{
            {Duty::kTrain, 't'},
            {Duty::kServe, 's'},
            {Duty::kEvaluate, 'e'},
            {Duty::kNone,
             '-'}}.at(duty_of(Cluster(spec, task), strategy));
      }
    }
    return all;
  };
  EXPECT_EQ(duties(kServed, "ps"), "txssse");
  EXPECT_EQ(duties(kServedWithChief, "ps"), "ttssse");
  EXPECT_EQ(duties(kServed, "multi_worker_mirrored"), "-xtt-e");
  EXPECT_EQ(duties(kServedWithChief, "multi_worker_mirrored"), "-ttt-e");
  EXPECT_EQ(duties(kWorkers, "multi_worker_mirrored"), "-xttxe");
  EXPECT_EQ(duties(kWorkersWithChief, "multi_worker_mirrored"), "-tttxe");
  EXPECT_EQ(duties({}, "multi_worker_mirrored"), "txxxxe");
  for (const char* alone : {"mirrored", "central_storage", "default"}) {
    EXPECT_EQ(duties(kServed, alone), "tx---e");
    EXPECT_EQ(duties(kServedWithChief, alone), "tt---e");
    EXPECT_EQ(duties(kWorkers, alone), "tx--xe");
    EXPECT_EQ(duties(kWorkersWithChief, alone), "t---xe");
    EXPECT_EQ(duties(kOneWorker, alone), "txtxxe");
    EXPECT_EQ(duties(kOneServedWorker, alone), "tx-x-e") << "the chief's program trains";
    EXPECT_EQ(duties({}, alone), "txxxxe");
  }
}

TEST(CheckHasDuty, SaysHowTheProcessShouldHaveBeenStarted) {
  const auto problem = [](const ClusterSpec& spec, std::optional<TaskId> task,
                          const std::string& strategy) {
    return error_of([&] { check_has_duty(Cluster(spec, task), strategy); });
  };
  EXPECT_EQ(problem(kWorkers, TaskId{"worker", 0}, "default"),
            "strategy 'default' trains in one process, but this process is /job:worker/task:0, one "
            "of 2 that were started to train together, and each would train alone; use strategy "
            "'multi_worker_mirrored', or start the program once, without a cluster");
  EXPECT_EQ(problem(kServed, TaskId{"ps", 0}, "multi_worker_mirrored"),
            "strategy 'multi_worker_mirrored' has no use for this process, /job:ps/task:0: it "
            "keeps no variables on parameter servers; use strategy 'ps', or start no ps tasks and "
            "leave job 'ps' out of the cluster spec");
  EXPECT_EQ(problem(kWorkers, std::nullopt, "multi_worker_mirrored"),
            "strategy 'multi_worker_mirrored' trains on the workers of a cluster, but this process "
            "is none of its tasks; start the program once for each worker, with TF_CONFIG's "
            "\"task\" or with --task_type worker and --task_index, or on one machine with trireme "
            "launch --mirrored");
  EXPECT_EQ(problem(kWorkers, TaskId{"worker", 0}, "ps"),
            "the cluster has no ps tasks to keep variables on; add a ps job to it");
  for (const auto& task : {TaskId{"worker", 0}, TaskId{"ps", 0}}) {
    EXPECT_EQ(problem(kServed, task, "mirorred"),
              "'mirorred' is not the name of a strategy; the strategies are 'ps', "
              "'multi_worker_mirrored', 'mirrored', 'central_storage' and 'default'");
  }
  check_has_duty(Cluster(kServed, TaskId{"worker", 0}), "ps");
  check_has_duty(Cluster(), "ps");
  check_has_duty(Cluster(kWorkers, TaskId{"evaluator", 0}), "ps");
}

TEST(CheckTrains, RejectsTasksThatServeOrEvaluate) {
  EXPECT_EQ(error_of([] {
              check_trains(Cluster(kServed, TaskId{"worker", 0}), "ps");
            }),
            "strategy 'ps' is made by the chief's program, but this process is /job:worker/task:0, "
            "which serves it; first write: if (me.is_server()) return tr::Server(me).join();");
  EXPECT_EQ(error_of([] {
              check_trains(Cluster(kServed, TaskId{"evaluator", 0}), "ps");
            }),
            "strategy 'ps' is for processes that train, but this one is /job:evaluator/task:0, "
            "which evaluates the checkpoints of the others; call evaluate_checkpoints() with a "
            "model that has no strategy");
  Cluster asked(kServed, TaskId{"worker", 0});
  asked.strategy = "multi_worker_mirrored";
  EXPECT_EQ(error_of([&] { check_trains(asked, "ps"); }),
            "this program trains with strategy 'ps', but was asked for 'multi_worker_mirrored'; "
            "leave --strategy out, or start a program that takes it");
  check_trains(Cluster(kServed), "ps");
  check_trains(Cluster(kWorkers, TaskId{"worker", 1}), "multi_worker_mirrored");
}

TEST(WarnOfUnusedJobs, NamesThem) {
  const auto warning = [](const ClusterSpec& spec, std::optional<TaskId> task,
                          const std::string& strategy) {
    testing::internal::CaptureStderr();
    warn_of_unused_jobs(Cluster(spec, task), strategy);
    const std::string line = testing::internal::GetCapturedStderr();
    return line.substr(std::min(line.size(), line.find("strategy")));
  };
  EXPECT_EQ(warning(kServed, TaskId{"worker", 0}, "multi_worker_mirrored"),
            "strategy 'multi_worker_mirrored' has no use for job 'ps' (1 task) of the cluster "
            "spec; every worker has all variables\n");
  EXPECT_EQ(warning(kServedWithChief, TaskId{"chief", 0}, "mirrored"),
            "strategy 'mirrored' has no use for job 'ps' (1 task) and job 'worker' (2 tasks) of "
            "the cluster spec; it trains in this process alone\n");
  EXPECT_EQ(warning(kServed, std::nullopt, "ps"), "");
  EXPECT_EQ(warning(kWorkersWithChief, TaskId{"worker", 0}, "multi_worker_mirrored"), "");
  EXPECT_EQ(warning({}, std::nullopt, "mirrored"), "");
}

}  // namespace
}  // namespace trireme::internal
