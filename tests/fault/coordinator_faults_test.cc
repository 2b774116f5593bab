// Closures over real processes that are killed, frozen and started again. TRIREME_HURTS sets how
// often a worker is hurt.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "trireme/base/status.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/graph/function.h"
#include "trireme/graph/variable.h"
#include "trireme/testing/process_cluster.h"
#include "trireme/testing/setting.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using torch::Tensor;

const int64_t kHurts = setting("TRIREME_HURTS", 4);

const TaskId kWorker0{"worker", 0}, kWorker1{"worker", 1}, kPs0{"ps", 0}, kPs1{"ps", 1};

// Closures that add 1 to two variables, one on each parameter server, and take a while.
class CoordinatorFaults : public testing::Test {
 protected:
  CoordinatorFaults() {
    const auto scope = strategy_.scope();
    counts_.emplace_back("a", torch::zeros({}, torch::kInt64));
    counts_.emplace_back("b", torch::zeros({}, torch::kInt64));
    coordinator_ = std::make_unique<ClusterCoordinator>(strategy_);
  }

  void schedule(int closures) {
    for (int i = 0; i < closures; ++i) last_ = coordinator_->schedule(add_, work_);
    scheduled_ += closures;
  }

  // Until closures have run, so that some are in flight.
  void wait_for_progress() {
    const RemoteValue value = coordinator_->schedule(add_, work_);
    ++scheduled_;
    value.tensors();
  }

  bool done_within(Duration patience) {
    const Time limit = after(patience);
    while (!coordinator_->done()) {
      if (Clock::real().now() > limit) return false;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }

  void expect_each_counted_once() {
    ASSERT_TRUE(done_within(seconds(60)));
    for (const Variable& count : counts_) EXPECT_EQ(count.read().item<int64_t>(), scheduled_);
  }

  void expect_lost(const TaskId& task, const std::function<void()>& work) {
    try {
      work();
      ADD_FAILURE() << "no error";
    } catch (const PsLost& error) {
      EXPECT_EQ(error.origin().task, task.to_string());
    }
  }

  ProcessCluster cluster_{{{.workers = 2, .ps = 2}}};
  ParameterServerStrategy strategy_{Cluster(cluster_.spec())};
  std::vector<Variable> counts_;
  const Tensor work_ = torch::ones({120, 120});
  const Function<Tensor(const Tensor&)> add_ =
      function("add", std::function<Tensor(const Tensor&)>([this](const Tensor& x) {
                 for (const Variable& count : counts_) {
                   count.assign_add(torch::ones({}, torch::kInt64));
                 }
                 return x.matmul(x).sum();
               }),
               {});
  std::unique_ptr<ClusterCoordinator> coordinator_;
  RemoteValue last_;
  int64_t scheduled_ = 0;
};

TEST_F(CoordinatorFaults, AWorkerKilledInMidRun) {
  wait_for_progress();
  schedule(2000);
  cluster_.kill(kWorker1);
  schedule(1000);
  expect_each_counted_once();
}

TEST_F(CoordinatorFaults, WorkersKilledFrozenAndStartedAgainAtRandom) {
  std::mt19937 random(11);
  wait_for_progress();
  for (int i = 0; i < kHurts; ++i) {
    const TaskId worker{"worker", static_cast<int>(random() % 2)};
    schedule(1000);
    if (random() % 2 == 0) {
      cluster_.kill(worker);
      std::this_thread::sleep_for(milliseconds(random() % 300));
      cluster_.start(worker);
    } else {
      cluster_.freeze(worker);
      // Longer than a sign of life may take: its closures run elsewhere, and it pushes late.
      std::this_thread::sleep_for(seconds(random() % 2 == 0 ? 1 : 6));
      cluster_.thaw(worker);
    }
  }
  expect_each_counted_once();
}

TEST_F(CoordinatorFaults, AFrozenWorkersClosuresRunElsewhere) {
  wait_for_progress();
  schedule(200);
  cluster_.freeze(kWorker0);
  schedule(200);
  expect_each_counted_once();
  cluster_.thaw(kWorker0);
  schedule(200);
  expect_each_counted_once();
}

TEST_F(CoordinatorFaults, BothWorkersKilledAndStartedAgain) {
  wait_for_progress();
  schedule(1000);
  cluster_.kill(kWorker0);
  cluster_.kill(kWorker1);
  EXPECT_FALSE(coordinator_->done());
  cluster_.start(kWorker0);
  cluster_.start(kWorker1);
  expect_each_counted_once();
}

TEST_F(CoordinatorFaults, ResultsAreFetchedAfterTheWorkersDeath) {
  schedule(50);
  ASSERT_TRUE(done_within(seconds(30)));
  cluster_.kill(kWorker0);
  cluster_.kill(kWorker1);
  EXPECT_EQ(coordinator_->fetch(last_).item<float>(), 120.0f * 120 * 120);
  for (const Variable& count : counts_) EXPECT_EQ(count.read().item<int64_t>(), 50);
}

TEST_F(CoordinatorFaults, AKilledParameterServerIsNamedByJoin) {
  wait_for_progress();
  schedule(2000);
  cluster_.kill(kPs1);
  const Time begin = Clock::real().now();
  expect_lost(kPs1, [&] { coordinator_->join(); });
  EXPECT_LT(Clock::real().now() - begin, seconds(20));
  expect_lost(kPs1, [&] { schedule(1); });
  expect_lost(kPs1, [&] { coordinator_->done(); });
}

TEST_F(CoordinatorFaults, ARestartedParameterServerIsLostToo) {
  wait_for_progress();
  cluster_.restart(kPs0);
  const Time limit = after(seconds(30));
  expect_lost(kPs0, [&] {
    while (Clock::real().now() < limit) schedule(1);
  });
}

TEST_F(CoordinatorFaults, AParameterServerKilledWhileAWorkerIsBeingReplaced) {
  wait_for_progress();
  schedule(1000);
  cluster_.kill(kWorker0);
  cluster_.kill(kPs0);
  cluster_.start(kWorker0);
  expect_lost(kPs0, [&] { coordinator_->join(); });
}

}  // namespace
}  // namespace trireme
