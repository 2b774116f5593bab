// Every scheduled closure takes effect exactly once while worker processes are killed, frozen and
// restarted, and the loss of a parameter server is reported as a PsLost that names it. Each test
// runs with two workers and two parameter servers, and with one of each. TRIREME_HURTS sets how
// often the random test kills or freezes a worker.
//
// Each closure adds 1 to a variable on every parameter server. At the end, a count that is too low
// shows a lost closure, and a count that is too high shows one that was applied twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/process_cluster.h"
#include "trireme/testing/setting.h"
#include "trireme/testing/slowdown.h"
#include "trireme/testing/wait_until.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using torch::Tensor;

const int64_t kHurts = setting("TRIREME_HURTS", 4);
// Time limit for an error that has to wait until a frozen worker is lost: its lease of 3 s, and
// time for the health check and the fence.
constexpr auto kLostLimit = seconds(15);

struct Size {
  int workers;
  int ps;
};

class CoordinatorFaults : public testing::TestWithParam<Size> {
 protected:
  CoordinatorFaults() {
    const auto scope = strategy_.scope();
    for (int i = 0; i < GetParam().ps; ++i) {
      counts_.emplace_back(absl::StrCat("count", i), torch::zeros({}, torch::kInt64));
    }
    coordinator_ = std::make_unique<ClusterCoordinator>(strategy_);
  }

  // Waits for all servers: one that has just been started cannot be asked to stop yet.
  void TearDown() override {
    for (const TaskId& task : cluster_.spec().all_tasks()) {
      if (cluster_.is_running(task)) cluster_.wait_until_up(task);
    }
  }

  const TaskId kFirst{"worker", 0}, kLast{"worker", GetParam().workers - 1};
  const TaskId kPs{"ps", GetParam().ps - 1};

  void for_all_workers(const std::function<void(const TaskId&)>& action) {
    for (int i = 0; i < GetParam().workers; ++i) action({"worker", i});
  }
  void kill_all_workers() {
    for_all_workers([this](const TaskId& worker) { cluster_.kill(worker); });
  }

  void schedule(int closures) { schedule(closures, work_); }
  void schedule(int closures, const Tensor& work) {
    for (int i = 0; i < closures; ++i) last_ = coordinator_->schedule(add_, work);
    scheduled_ += closures;
  }
  // Schedules closures that take a worker some milliseconds each, and blocks until the worker has
  // some of them. It is then busy for a while.
  void schedule_slow(int closures, const TaskId& worker) {
    schedule(closures, slow_work_);
    wait_until_busy(worker);
  }

  // Blocks until a closure has run, so that those scheduled next are in flight soon.
  void wait_for_progress() {
    const RemoteValue value = coordinator_->schedule(add_, work_);
    ++scheduled_;
    coordinator_->fetch(value);
  }

  bool done_within(Duration timeout) {
    return wait_until([this] { return coordinator_->done(); }, timeout);
  }

  WorkerState state_of(const TaskId& worker) const {
    for (const WorkerState& state : coordinator_->workers()) {
      if (state.task == worker) return state;
    }
    return {};
  }
  // Blocks until the worker has closures that it has not finished.
  void wait_until_busy(const TaskId& worker) {
    EXPECT_TRUE(wait_until([&] { return state_of(worker).closures_there > 0; }, seconds(20)))
        << worker;
  }
  // Blocks until the worker was lost more often than `before`.
  bool lost_within(const TaskId& worker, uint64_t before, Duration timeout) {
    return wait_until([&] { return state_of(worker).losses > before; }, timeout);
  }
  // Schedules closures until the worker has finished one more.
  void wait_until_used(const TaskId& worker) {
    const uint64_t before = state_of(worker).closures_done;
    EXPECT_TRUE(wait_until(
        [&] {
          schedule(20);
          return state_of(worker).closures_done > before;
        },
        seconds(30)))
        << worker;
  }

  std::vector<int64_t> read_counts() const {
    std::vector<int64_t> counts;
    for (const Variable& count : counts_) counts.push_back(count.read().item<int64_t>());
    return counts;
  }
  void expect_each_counted_once() {
    ASSERT_TRUE(done_within(seconds(60)));
    for (const int64_t count : read_counts()) EXPECT_EQ(count, scheduled_);
  }
  // Waits until the worker is used again, and checks that only closures that were scheduled
  // meanwhile have changed the variables since they had the values `before`.
  void expect_nothing_late(const TaskId& worker, std::vector<int64_t> before) {
    scheduled_ = 0;
    wait_until_used(worker);
    ASSERT_TRUE(done_within(seconds(60)));
    for (int64_t& count : before) count += scheduled_;
    EXPECT_EQ(read_counts(), before);
  }

  // Checks that `work` throws a PsLost that names `task` within 20 seconds.
  void expect_lost(const TaskId& task, const std::function<void()>& work) {
    const Time begin = Clock::real().now();
    try {
      work();
      ADD_FAILURE() << "no error";
    } catch (const PsLost& error) {
      EXPECT_EQ(error.origin().task, task.to_string());
      EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
    }
    EXPECT_LT(Clock::real().now() - begin, seconds(20));
  }

  ProcessCluster cluster_{{{.workers = GetParam().workers, .ps = GetParam().ps}}};
  ParameterServerStrategy strategy_{Cluster(cluster_.spec())};
  std::vector<Variable> counts_;
  const Tensor work_ = torch::ones({120, 120}), slow_work_ = torch::ones({300, 300});
  const Function<Tensor(const Tensor&)> add_ =
      function("add", std::function<Tensor(const Tensor&)>([this](const Tensor& x) {
                 for (const Variable& count : counts_) {
                   count.assign_add(torch::ones({}, torch::kInt64));
                 }
                 return x.matmul(x).sum();
               }),
               {});
  const Function<void(Iterator&)> add_next_ =
      function("add_next", std::function<void(Iterator&)>([this](Iterator& numbers) {
                 const Tensor number = numbers.next();
                 for (const Variable& count : counts_) count.assign_add(number);
               }),
               {});
  std::unique_ptr<ClusterCoordinator> coordinator_;
  RemoteValue<> last_;
  int64_t scheduled_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Sizes, CoordinatorFaults, testing::Values(Size{2, 2}, Size{1, 1}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.workers, "and", info.param.ps);
                         });

TEST_P(CoordinatorFaults, DestroyingTheCoordinatorCancelsItsClosures) {
  wait_for_progress();
  schedule(100);
  for_all_workers([this](const TaskId& worker) { cluster_.freeze(worker); });
  schedule(500);  // No worker can finish these.
  for_all_workers([this](const TaskId& worker) { wait_until_busy(worker); });
  coordinator_.reset();
  EXPECT_EQ(error_of([&] { ClusterCoordinator::fetch(last_); }).code(), ErrorCode::kCancelled);
  // The workers are thawed with closures in mid-run, and the next coordinator runs none of them.
  std::vector<int64_t> before = read_counts();
  for_all_workers([this](const TaskId& worker) { cluster_.thaw(worker); });
  coordinator_ = std::make_unique<ClusterCoordinator>(strategy_);
  for_all_workers([&](const TaskId& worker) {
    expect_nothing_late(worker, before);
    before = read_counts();
  });
}

TEST_P(CoordinatorFaults, CountsOnceWhenAnIdleWorkerIsKilled) {
  schedule(10);
  expect_each_counted_once();
  cluster_.kill(kLast);
  cluster_.start(kLast);
  schedule(10);
  expect_each_counted_once();
}

TEST_P(CoordinatorFaults, CountsOnceWhenABusyWorkerIsKilled) {
  wait_for_progress();
  schedule(2000);
  cluster_.kill(kLast);
  schedule(1000);
  cluster_.start(kLast);
  expect_each_counted_once();
}

// The closures of a killed worker are requeued as soon as it is lost.
TEST_P(CoordinatorFaults, AKilledWorkersClosuresRunElsewhereWithinFiveSeconds) {
  wait_for_progress();
  // A single worker also has to start within this time.
  const auto limit = std::chrono::duration_cast<Duration>(seconds(5) * slowdown());
  std::vector<RemoteValue<>> values;
  for (int i = 0; i < 300; ++i) values.push_back(coordinator_->schedule(add_, work_));
  scheduled_ += 300;
  cluster_.kill(kFirst);
  if (kFirst == kLast) cluster_.start(kFirst);
  EXPECT_TRUE(done_within(limit));
  for (const auto& value : values) EXPECT_TRUE(value.ready());
  if (kFirst != kLast) cluster_.start(kFirst);
  expect_each_counted_once();
}

TEST_P(CoordinatorFaults, CountsOnceWhenAWorkerIsKilledWhileItStarts) {
  coordinator_.reset();
  cluster_.kill(kFirst);
  cluster_.start(kFirst);  // not up yet
  coordinator_ = std::make_unique<ClusterCoordinator>(strategy_);
  schedule(1);
  cluster_.kill(kFirst);
  schedule(100);
  cluster_.start(kFirst);
  expect_each_counted_once();
}

// The worker is frozen, not killed: once it is thawed, it can still push the updates of closures
// that were cancelled meanwhile.
TEST_P(CoordinatorFaults, NoCancelledClosureRunsAfterTheErrorWhenAWorkerIsFrozen) {
  wait_for_progress();
  schedule_slow(300, kLast);
  cluster_.freeze(kLast);
  ASSERT_GT(state_of(kLast).closures_there, 0u);
  coordinator_->schedule({.deadline = milliseconds(1)}, add_, work_);
  const Time begin = Clock::real().now();
  const Error error = error_of([&] { coordinator_->join(seconds(60)); });
  EXPECT_THAT(error.what(), HasSubstr("it was not done by its deadline"));
  EXPECT_LT(Clock::real().now() - begin, kLostLimit);
  // No cancelled closure changes a variable after join() has thrown.
  const std::vector<int64_t> before = read_counts();
  EXPECT_LT(before[0], scheduled_);
  cluster_.thaw(kLast);
  expect_nothing_late(kLast, before);
}

TEST_P(CoordinatorFaults, CountsOnceWhenAWorkerIsKilledWhileItsDatasetIsCreated) {
  const auto ready = coordinator_->create_per_worker_dataset(Dataset::range(1, 2).repeat());
  for (const bool from_function : {false, true}) {
    // The worker gets the function first, so that it lacks nothing but the dataset later.
    const uint64_t used = state_of(kFirst).closures_done;
    EXPECT_TRUE(wait_until(
        [&] {
          coordinator_->schedule(add_next_, ready.iterator());
          ++scheduled_;
          return state_of(kFirst).closures_done > used;
        },
        seconds(30)));
    expect_each_counted_once();
    // The frozen worker receives the dataset without an answer, and is killed before it can give
    // one.
    cluster_.freeze(kFirst);
    const WorkerState frozen = state_of(kFirst);
    const Dataset ones = Dataset::from_tensors({torch::ones({4 << 20}, torch::kInt64)}).repeat();
    const auto data =
        from_function
            ? coordinator_->create_per_worker_dataset([&](const InputContext&) { return ones; })
            : coordinator_->create_per_worker_dataset(ones);
    for (int i = 0; i < 500; ++i) coordinator_->schedule(add_next_, data.iterator());
    scheduled_ += 500;
    wait_until_busy(kFirst);
    cluster_.kill(kFirst);
    EXPECT_TRUE(lost_within(kFirst, frozen.losses, seconds(10)));
    EXPECT_EQ(state_of(kFirst).closures_done, frozen.closures_done);
    cluster_.start(kFirst);
    expect_each_counted_once();
  }
}

TEST_P(CoordinatorFaults, ARestartedWorkerGetsItsDatasetAgain) {
  const auto data = coordinator_->create_per_worker_dataset(Dataset::range(1, 2).repeat());
  const auto schedule_draws = [&](int closures) {
    for (int i = 0; i < closures; ++i) coordinator_->schedule(add_next_, data.iterator());
    scheduled_ += closures;
  };
  for (int i = 0; i < 3; ++i) {
    schedule_draws(500);
    cluster_.kill(kLast);
    cluster_.start(kLast);
    schedule_draws(500);
  }
  expect_each_counted_once();
}

TEST_P(CoordinatorFaults, ARepeatedClosureCountsEachRepetitionOnce) {
  const auto data = coordinator_->create_per_worker_dataset(Dataset::range(1, 2).repeat());
  for (int i = 0; i < 40; ++i) {
    coordinator_->schedule({.repeat = 100}, add_next_, data.iterator());
    if (i % 10 == 5) cluster_.restart(i % 20 == 5 ? kFirst : kLast);
  }
  scheduled_ += 4000;
  expect_each_counted_once();
}

TEST_P(CoordinatorFaults, CountsOnceWhenWorkersAreKilledAndFrozenAtRandom) {
  std::mt19937 random(11);
  wait_for_progress();
  for (int i = 0; i < kHurts; ++i) {
    const TaskId worker{"worker", static_cast<int>(random() % GetParam().workers)};
    schedule(1000);
    if (random() % 2 == 0) {
      cluster_.kill(worker);
      std::this_thread::sleep_for(milliseconds(random() % 300));
      cluster_.start(worker);
    } else {
      const uint64_t losses = state_of(worker).losses;
      cluster_.freeze(worker);
      // Its closures run elsewhere, and its own pushes arrive after the thaw. A worker that was
      // not connected yet cannot be lost.
      lost_within(worker, losses, seconds(6));
      cluster_.thaw(worker);
    }
  }
  expect_each_counted_once();
}

// A worker that does not answer for the lease of 3 s is lost, and its closures run elsewhere within
// 2 s more.
TEST_P(CoordinatorFaults, AFrozenWorkerIsLostAndItsClosuresRunElsewhereWithinFiveSeconds) {
  wait_for_progress();
  const double load_before = slowdown();
  schedule_slow(300, kFirst);
  const uint64_t losses = state_of(kFirst).losses;
  const Time frozen = Clock::real().now();
  cluster_.freeze(kFirst);
  ASSERT_GT(state_of(kFirst).closures_there, 0u);
  // The limit is compared afterwards, because the machine may become busier meanwhile.
  if (kFirst == kLast) {
    EXPECT_TRUE(lost_within(kFirst, losses, seconds(60)));
  } else {
    EXPECT_TRUE(done_within(seconds(60)));
  }
  const std::chrono::duration<double> elapsed = Clock::real().now() - frozen;
  EXPECT_LT(elapsed, seconds(5) * std::max(load_before, slowdown()));
  EXPECT_GT(elapsed, seconds(2)) << "a worker that is merely late is not lost";
  const WorkerState state = state_of(kFirst);
  EXPECT_EQ(state.losses, losses + 1);
  EXPECT_FALSE(state.up);
  EXPECT_EQ(state.closures_there, 0u);
  cluster_.thaw(kFirst);
  wait_until_used(kFirst);
  expect_each_counted_once();
}

TEST_P(CoordinatorFaults, CountsOnceWhenAllWorkersAreRestarted) {
  wait_for_progress();
  schedule(1000);
  kill_all_workers();
  EXPECT_FALSE(coordinator_->done());
  for_all_workers([this](const TaskId& worker) { cluster_.start(worker); });
  expect_each_counted_once();
}

TEST_P(CoordinatorFaults, CountsOnceWhenAWorkerIsLostAgainAndAgain) {
  wait_for_progress();
  for (int i = 0; i < 6; ++i) {
    schedule(200);
    cluster_.restart(kLast);
  }
  expect_each_counted_once();
  EXPECT_GT(coordinator_->workers().back().losses, 0u);
}

TEST_P(CoordinatorFaults, ResultsAndVariablesOutliveTheWorkers) {
  schedule(50);
  ASSERT_TRUE(done_within(seconds(30)));
  kill_all_workers();
  EXPECT_EQ(coordinator_->fetch(last_).item<float>(), 120.0f * 120 * 120);
  for (const Variable& count : counts_) EXPECT_EQ(count.read().item<int64_t>(), 50);
}

TEST_P(CoordinatorFaults, AFailingClosureIsNamedOnceAndCostsNoWorker) {
  const auto bad = function("bad", std::function<Tensor(const Tensor&)>([](const Tensor& ids) {
                              return torch::arange(10).index_select(0, ids);
                            }),
                            {.check_capture = false});
  wait_for_progress();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(coordinator_->fetch(coordinator_->schedule(bad, torch::tensor({i}))).item<int64_t>(),
              i);
    coordinator_->schedule(bad, torch::tensor({70}));
    const Error error = error_of([&] { coordinator_->join(); });
    EXPECT_THAT(error.what(), HasSubstr("/job:worker/task:"));
    EXPECT_THAT(error.what(), HasSubstr("function 'bad'"));
    EXPECT_THAT(error.what(), HasSubstr("aten::index_select"));
    coordinator_->join();  // the error is thrown only once
    schedule(20);
    expect_each_counted_once();
  }
  for (const WorkerState& worker : coordinator_->workers()) EXPECT_EQ(worker.losses, 0u);
}

TEST_P(CoordinatorFaults, JoinNamesAKilledParameterServer) {
  wait_for_progress();
  schedule(2000);
  cluster_.kill(kPs);
  expect_lost(kPs, [&] { coordinator_->join(); });
  expect_lost(kPs, [&] { schedule(1); });
  expect_lost(kPs, [&] { coordinator_->done(); });
}

TEST_P(CoordinatorFaults, ScheduleNamesAKilledParameterServer) {
  wait_for_progress();
  cluster_.kill(kPs);
  const Time limit = after(seconds(30));
  expect_lost(kPs, [&] {
    while (Clock::real().now() < limit) schedule(1);
  });
}

TEST_P(CoordinatorFaults, ARestartedParameterServerCountsAsLost) {
  wait_for_progress();
  cluster_.restart(kPs);
  const Time limit = after(seconds(30));
  expect_lost(kPs, [&] {
    while (Clock::real().now() < limit) schedule(1);
  });
}

TEST_P(CoordinatorFaults, JoinNamesAParameterServerKilledWhileAWorkerRestarts) {
  wait_for_progress();
  schedule(1000);
  cluster_.kill(kFirst);
  cluster_.kill(kPs);
  cluster_.start(kFirst);
  expect_lost(kPs, [&] { coordinator_->join(); });
}

// A lost worker causes no error, a lost parameter server throws PsLost, and a failed closure throws
// its own error.
TEST_P(CoordinatorFaults, ErrorsHaveTheTypeOfWhatWasLost) {
  wait_for_progress();
  schedule(200);
  cluster_.kill(kFirst);
  cluster_.start(kFirst);
  EXPECT_EQ(error_of([&] { coordinator_->join(); }).code(), ErrorCode::kOk);
  const auto late =
      coordinator_->schedule({.deadline = milliseconds(1)}, add_, torch::ones({1500, 1500}));
  EXPECT_EQ(error_of([&] { coordinator_->join(); }).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(error_of([&] { coordinator_->fetch(late); }).code(), ErrorCode::kDeadlineExceeded);
  cluster_.kill(kPs);
  const Time limit = after(seconds(30));
  expect_lost(kPs, [&] {
    while (Clock::real().now() < limit) coordinator_->schedule(add_, work_);
  });
}

}  // namespace
}  // namespace trireme
