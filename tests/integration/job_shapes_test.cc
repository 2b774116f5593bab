// Shapes in which users start a job: strategies, clusters with and without a chief, TF_CONFIG,
// flags and the launcher, models made in a scope or not, tasks that are started or missing. In each
// of them the program trains as it was meant to, or says within ten seconds what is missing. It
// never trains alone where others were started to train with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/integration/started_tasks.h"

namespace trireme {
namespace {

using testing::ContainsRegex;

constexpr auto kTellTime = std::chrono::seconds(10);
constexpr size_t kAtOnce = 3;

// Expected outcome of a shape.
struct Outcome {
  int trained = 0;       // number of processes that train; 0 if a message is expected instead
  std::string strategy;  // strategy with which they train
  int replicas = 1;
  std::string tells = "";   // pattern of a message that is expected of each process of `teller`
  std::string teller = "";  // job whose tasks tell it
};

Outcome trains(int processes, const std::string& strategy, int replicas = 1) {
  return {.trained = processes, .strategy = strategy, .replicas = replicas};
}
Outcome tells(const std::string& teller, const std::string& message) {
  return {.tells = message, .teller = teller};
}
// Trains, and its chief warns.
Outcome warns(Outcome outcome, const std::string& teller, const std::string& message) {
  outcome.tells = message;
  outcome.teller = teller;
  return outcome;
}

struct Shape {
  std::string name;
  // Numbers of tasks in the spec. No tasks stand for a program without a cluster.
  int workers, ps;
  bool chief;
  Told told;
  std::vector<std::string> flags;  // flags of the program
  std::vector<TaskId> started;     // processes that are started
  Outcome outcome;
};

const TaskId kChief{"chief", 0}, kPs{"ps", 0}, kWorker0{"worker", 0}, kWorker1{"worker", 1},
    kEvaluator{"evaluator", 0};
const std::vector<TaskId> kServed = {kPs, kWorker0, kWorker1, kChief},
                          kWorkers = {kWorker0, kWorker1},
                          kWorkersAndChief = {kWorker0, kWorker1, kChief};
constexpr auto kConfig = Told::kTfConfig, kByFlags = Told::kFlags;
constexpr char kNoChief[] = "no chief's program has used it yet; start the program once more";
constexpr char kAlone[] =
    "one of [23] that were started to train together, and each would train alone";

const std::vector<Shape> kShapes = {
    // Parameter servers.
    {"ps with a chief", 2, 1, true, kConfig, {}, kServed, trains(1, "ps")},
    {"ps with a chief, in a scope", 2, 1, true, kConfig, {"--scope"}, kServed, trains(1, "ps")},
    {"ps by name", 2, 1, true, kConfig, {"--strategy=ps"}, kServed, trains(1, "ps")},
    {"ps without a chief's entry", 2, 1, false, kConfig, {}, kServed, trains(1, "ps")},
    {"ps by flags", 2, 1, false, kByFlags, {}, kServed, trains(1, "ps")},
    {"ps by flags, by name, in a scope",
     2,
     1,
     true,
     kByFlags,
     {"--strategy=ps", "--scope"},
     kServed,
     trains(1, "ps")},
    {"ps, no chief is started",
     2,
     1,
     false,
     kConfig,
     {},
     {kPs, kWorker0, kWorker1},
     tells("worker", kNoChief)},
    {"ps, no chief is started, the ps say so",
     2,
     1,
     true,
     kConfig,
     {},
     {kPs, kWorker0, kWorker1},
     tells("ps", kNoChief)},
    {"ps by flags, no chief is started",
     2,
     1,
     false,
     kByFlags,
     {"--strategy=ps"},
     {kPs, kWorker0, kWorker1},
     tells("worker", kNoChief)},
    {"ps, the ps is missing",
     2,
     1,
     true,
     kConfig,
     {},
     {kWorker0, kWorker1, kChief},
     tells("chief", "waiting for /job:ps/task:0")},
    {"ps, a worker is missing", 2, 1, true, kConfig, {}, {kPs, kWorker1, kChief}, trains(1, "ps")},
    {"ps, all workers are missing",
     2,
     1,
     true,
     kConfig,
     {},
     {kPs, kChief},
     tells("chief", "waiting for /job:worker/task:0 .*, /job:worker/task:1")},
    {"ps without ps tasks",
     2,
     0,
     false,
     kConfig,
     {"--strategy=ps"},
     kWorkers,
     tells("worker", "the cluster has no ps tasks to keep variables on; add a ps job to it")},
    // Workers that train together.
    {"workers", 2, 0, false, kConfig, {}, kWorkers, trains(2, "multi_worker_mirrored", 2)},
    {"workers, in a scope",
     2,
     0,
     false,
     kConfig,
     {"--scope"},
     kWorkers,
     trains(2, "multi_worker_mirrored", 2)},
    {"workers and a chief",
     2,
     0,
     true,
     kConfig,
     {},
     kWorkersAndChief,
     trains(3, "multi_worker_mirrored", 3)},
    {"workers and a chief, in a scope",
     2,
     0,
     true,
     kByFlags,
     {"--scope"},
     kWorkersAndChief,
     trains(3, "multi_worker_mirrored", 3)},
    {"workers by name",
     2,
     0,
     false,
     kConfig,
     {"--strategy=multi_worker_mirrored"},
     kWorkers,
     trains(2, "multi_worker_mirrored", 2)},
    {"workers by flags",
     2,
     0,
     false,
     kByFlags,
     {},
     kWorkers,
     trains(2, "multi_worker_mirrored", 2)},
    {"one worker", 1, 0, false, kConfig, {}, {kWorker0}, trains(1, "multi_worker_mirrored", 1)},
    {"workers, with a ps that has no use",
     2,
     1,
     false,
     kConfig,
     {"--strategy=multi_worker_mirrored"},
     kWorkers,
     warns(trains(2, "multi_worker_mirrored", 2), "worker",
           "strategy 'multi_worker_mirrored' has no use for job 'ps' \\(1 task\\)")},
    {"workers, the ps that has no use is started",
     2,
     1,
     false,
     kConfig,
     {"--strategy=multi_worker_mirrored"},
     {kPs},
     tells("ps", "has no use for this process, /job:ps/task:0")},
    {"workers, one is missing",
     2,
     0,
     false,
     kConfig,
     {},
     {kWorker0},
     tells("worker", "waiting for rank 1 \\(/job:worker/task:1\\)")},
    {"workers, the first is missing",
     2,
     0,
     false,
     kByFlags,
     {},
     {kWorker1},
     tells("worker", "waiting for .*/job:worker/task:0")},
    {"workers, the chief is missing",
     2,
     0,
     true,
     kConfig,
     {},
     kWorkers,
     tells("worker", "waiting for .*/job:chief/task:0")},
    // Strategies of one process.
    {"mirrored", 0, 0, false, kConfig, {"--strategy=mirrored"}, {kWorker0}, trains(1, "mirrored")},
    {"mirrored, in a scope",
     0,
     0,
     false,
     kConfig,
     {"--strategy=mirrored", "--scope"},
     {kWorker0},
     trains(1, "mirrored")},
    {"central storage",
     0,
     0,
     false,
     kConfig,
     {"--strategy=central_storage"},
     {kWorker0},
     trains(1, "central_storage")},
    {"central storage, in a scope",
     0,
     0,
     false,
     kConfig,
     {"--strategy=central_storage", "--scope"},
     {kWorker0},
     trains(1, "central_storage")},
    {"default", 0, 0, false, kConfig, {}, {kWorker0}, trains(1, "default")},
    {"mirrored on two workers",
     2,
     0,
     false,
     kConfig,
     {"--strategy=mirrored"},
     kWorkers,
     tells("worker", kAlone)},
    {"central storage on two workers",
     2,
     0,
     false,
     kConfig,
     {"--strategy=central_storage"},
     kWorkers,
     tells("worker", kAlone)},
    {"default on two workers",
     2,
     0,
     false,
     kByFlags,
     {"--strategy=default"},
     kWorkers,
     tells("worker", kAlone)},
    {"mirrored on the workers of ps",
     2,
     1,
     true,
     kConfig,
     {"--strategy=mirrored"},
     kWorkers,
     tells("worker", kAlone)},
    {"mirrored on a chief and workers",
     2,
     0,
     true,
     kConfig,
     {"--strategy=mirrored"},
     {kChief},
     tells("chief", kAlone)},
    {"mirrored at the chief of ps",
     2,
     1,
     true,
     kConfig,
     {"--strategy=mirrored"},
     {kChief},
     warns(trains(1, "mirrored"), "chief",
           "has no use for job 'ps' \\(1 task\\) and job 'worker' \\(2 tasks\\)")},
    {"a strategy that does not exist",
     2,
     1,
     true,
     kConfig,
     {"--strategy=mirorred"},
     {kChief},
     tells("chief", "'mirorred' is not the name of a strategy; the strategies are 'ps'")},
    // The evaluator.
    {"an evaluator that would train, ps",
     2,
     1,
     true,
     kConfig,
     {},
     {kEvaluator},
     tells("evaluator", "call evaluate_checkpoints\\(\\) where me.is_evaluator\\(\\) is true")},
    {"an evaluator that would train, in a scope",
     2,
     1,
     true,
     kConfig,
     {"--strategy=ps", "--scope"},
     {kEvaluator},
     tells("evaluator", "this process is the evaluator of the cluster, which does not train")},
    {"an evaluator that would train, workers",
     2,
     0,
     false,
     kByFlags,
     {},
     {kEvaluator},
     tells("evaluator", "this process is the evaluator of the cluster, which does not train")},
};

void expect_training(StartedTasks& job, const Outcome& outcome) {
  const std::string pattern =
      absl::StrCat("trained as ", outcome.strategy, " with ", outcome.replicas,
                   " replicas(, chief)?, weight ([-.0-9]+)");
  int trained = 0, chiefs = 0;
  std::set<std::string> weights;
  for (auto& [task, process] : job.all()) {
    EXPECT_TRUE(process->wait().ok()) << task << ":\n" << process->text();
    const std::string text = process->text();
    std::smatch match;
    if (!std::regex_search(text, match, std::regex(pattern))) {
      EXPECT_EQ(text.find("trained as"), text.npos) << task << ":\n" << text;
      continue;
    }
    ++trained;
    if (match[1].matched) ++chiefs;
    weights.insert(match[2]);
  }
  EXPECT_EQ(trained, outcome.trained);
  EXPECT_EQ(chiefs, 1);
  EXPECT_EQ(weights.size(), 1u) << "the workers have other weights";
}

void check(const Shape& shape) {
  SCOPED_TRACE(shape.name);
  StartedTasks job(shape.workers, shape.ps, shape.chief);
  const Time begin = Clock::real().now();
  for (const TaskId& task : shape.started) {
    std::vector<std::string> command = {built_program("shape_program")};
    command.insert(command.end(), shape.flags.begin(), shape.flags.end());
    if (task == kChief && shape.outcome.strategy == "ps") job.wait_until_serving();
    if (shape.workers == 0) {
      job.start_alone(command, task);
    } else {
      job.start(command, task, shape.told);
    }
  }
  if (!shape.outcome.tells.empty()) {
    for (const TaskId& task : shape.started) {
      if (task.job == shape.outcome.teller) job[task].wait_for(shape.outcome.tells);
    }
    EXPECT_LT(Clock::real().now() - begin, kTellTime);
  }
  if (shape.outcome.trained > 0) return expect_training(job, shape.outcome);
  for (auto& [task, process] : job.all()) {
    EXPECT_EQ(process->text().find("trained as"), std::string::npos) << task << " trained alone";
  }
}

TEST(JobShapes, TrainAsTheyWereMeantOrTellWhatIsMissing) {
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kAtOnce; ++i) {
    threads.emplace_back([&] {
      for (size_t shape; (shape = next++) < kShapes.size();) {
        try {
          check(kShapes[shape]);
        } catch (const Error& error) {
          ADD_FAILURE() << kShapes[shape].name << ": " << error.what();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

struct LaunchedShape {
  std::string name;
  std::vector<std::string> launch;  // flags of trireme launch
  std::vector<std::string> flags;   // flags of the program
  std::string tells;                // pattern in the output
  bool trains;                      // true if the launch ends with code 0
};

const std::vector<LaunchedShape> kLaunchedShapes = {
    {"generic servers",
     {"--workers=2", "--ps=1"},
     {},
     "trained as ps with 1 replicas, chief",
     true},
    {"generic servers, in a scope",
     {"--workers=2", "--ps=1"},
     {"--scope"},
     "trained as ps with 1 replicas, chief",
     true},
    {"one binary",
     {"--workers=2", "--ps=1", "--same-binary"},
     {"--strategy=ps"},
     "trained as ps with 1 replicas, chief",
     true},
    {"workers",
     {"--workers=2", "--mirrored"},
     {},
     "trained as multi_worker_mirrored with 2 replicas, chief",
     true},
    {"workers by name, in a scope",
     {"--workers=2", "--mirrored"},
     {"--strategy=multi_worker_mirrored", "--scope"},
     "trained as multi_worker_mirrored with 2 replicas, chief",
     true},
    {"servers for nobody",
     {"--workers=2", "--ps=1"},
     {"--strategy=mirrored"},
     "has no use for job 'ps' \\(1 task\\) and job 'worker' \\(2 tasks\\)",
     true},
    {"workers that would train alone",
     {"--workers=2", "--mirrored"},
     {"--strategy=mirrored"},
     kAlone,
     false},
    {"workers without --mirrored", {"--workers=2"}, {}, "trireme launch --mirrored", false},
    {"workers by name without --mirrored",
     {"--workers=2", "--ps=1"},
     {"--strategy=multi_worker_mirrored"},
     "trireme launch --mirrored",
     false},
};

TEST(JobShapes, TrainAsTheyWereLaunched) {
  for (const LaunchedShape& shape : kLaunchedShapes) {
    SCOPED_TRACE(shape.name);
    std::vector<std::string> words = {"launch", "--log-level=warning"};
    words.insert(words.end(), shape.launch.begin(), shape.launch.end());
    words.insert(words.end(), {"--", built_program("shape_program")});
    words.insert(words.end(), shape.flags.begin(), shape.flags.end());
    const Time begin = Clock::real().now();
    const CompletedProcess done = run_trireme(words);
    const std::string text = done.stdout_text + done.stderr_text;
    EXPECT_EQ(done.status.ok(), shape.trains) << text;
    EXPECT_THAT(text, ContainsRegex(shape.tells));
    if (shape.trains) continue;
    EXPECT_LT(Clock::real().now() - begin, kTellTime);
    EXPECT_EQ(text.find("trained as"), text.npos) << text;
  }
}

}  // namespace
}  // namespace trireme
