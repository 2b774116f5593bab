#include "trireme/coordinator/cluster_coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>
#include <thread>

#include "trireme/base/logging.h"
#include "trireme/base/sanitizer.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/optim/optimizer.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/in_process_test_cluster.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using torch::Tensor;

class CoordinatorTest : public testing::Test {
 protected:
  InProcessTestCluster cluster_{{.workers = 2, .ps = 2}};
  ParameterServerStrategy strategy_{Cluster(cluster_.spec())};
};

TEST_F(CoordinatorTest, RunsClosuresAndFetchesTheirResults) {
  ClusterCoordinator coordinator(strategy_);
  const auto square = function("square", [](const Tensor& x) { return x * x; });
  const auto both = function("both", [](const Tensor& x) { return std::pair(x + 1, x - 1); });
  RemoteValue last;
  std::vector<RemoteValue<>> squares;
  for (int i = 0; i < 10; ++i) {
    squares.push_back(coordinator.schedule(square, torch::tensor(1.0 * i)));
    last = squares.back();
  }
  const auto pair = coordinator.schedule(both, torch::ones({2}));
  coordinator.join();
  EXPECT_TRUE(coordinator.done());
  EXPECT_TRUE(last.ready());
  EXPECT_EQ(coordinator.fetch(last).item<double>(), 81.0);
  EXPECT_EQ(coordinator.fetch(squares)[3].item<double>(), 9.0);
  EXPECT_TRUE(coordinator.fetch(pair).second.equal(torch::zeros({2})));
}

constexpr int kClusters = kSanitized ? 10 : 50;
constexpr auto kQuick = milliseconds(kSanitized ? 3000 : 300);

// Objects that outlive their cluster, such as variables that a new cluster replaces by name, must
// not wait for its servers.
TEST(Coordinators, FollowEachOtherWithoutWaitingForEndedClusters) {
  for (int i = 0; i < kClusters; ++i) {
    const Time start = Clock::real().now();
    {
      InProcessTestCluster cluster({.workers = 1, .ps = 1});
      ParameterServerStrategy strategy{Cluster(cluster.spec())};
      auto net = strategy.distribute<torch::nn::Linear>(3, 1);
      ClusterCoordinator coordinator(strategy);
      const auto step = function("step", [&](const Tensor& x) { return net->forward(x).mean(); });
      coordinator.schedule(step, torch::ones({4, 3}));
      coordinator.join();
    }
    EXPECT_LT(Clock::real().now() - start, kQuick) << "cluster " << i;
  }
}

// Returns a function that takes a worker tens of milliseconds for 1 << 20 numbers.
Function<Tensor(const Tensor&)> slow_sum() {
  return function("slow", std::function<Tensor(const Tensor&)>([](const Tensor& x) {
                    Tensor y = x;
                    for (int i = 0; i < 50; ++i) y = torch::tanh(y);
                    return y.sum();
                  }));
}

TEST_F(CoordinatorTest, JoinTimesOutAndTheClosuresKeepRunning) {
  ClusterCoordinator coordinator(strategy_);
  const auto slow = slow_sum();
  std::vector<RemoteValue<>> values;
  for (int i = 0; i < 8; ++i) values.push_back(coordinator.schedule(slow, torch::ones({1 << 20})));
  EXPECT_EQ(error_of([&] { coordinator.join(milliseconds(1)); }).code(),
            ErrorCode::kDeadlineExceeded);
  uint64_t told = 0, last_done = 0;
  coordinator.join({.on_progress =
                        [&](const JoinProgress& progress) {
                          ++told;
                          EXPECT_EQ(progress.done + progress.left, 8u);
                          EXPECT_GE(progress.done, last_done);
                          last_done = progress.done;
                        },
                    .progress_every = milliseconds(1)});
  EXPECT_GT(told, 0u);
  for (const auto& value : values) EXPECT_GT(coordinator.fetch(value).item<float>(), 0);
  // The callback may end the wait.
  coordinator.schedule(slow, torch::ones({1 << 20}));
  EXPECT_THROW(coordinator.join({.on_progress = [](const JoinProgress&) { throw 1; },
                                 .progress_every = milliseconds(1)}),
               int);
  coordinator.join();
}

TEST_F(CoordinatorTest, EachOfManySmallClosuresChangesAVariableOnce) {
  constexpr int64_t kClosures = 2000;
  auto scope = strategy_.scope();
  const Variable sum("sum", torch::zeros({}, torch::kInt64)),
      count("count", torch::zeros({}, torch::kInt64));
  ClusterCoordinator coordinator(strategy_);
  const auto add = function("add", [&](const Tensor& number) {
    sum.assign_add(number);
    count.assign_add(torch::ones_like(number));
  });
  for (int64_t i = 1; i <= kClosures; ++i) coordinator.schedule(add, torch::tensor(i));
  coordinator.join();
  EXPECT_EQ(sum.read().item<int64_t>(), kClosures * (kClosures + 1) / 2);
  EXPECT_EQ(count.read().item<int64_t>(), kClosures);
}

TEST_F(CoordinatorTest, ScheduleBlocksWhileTheQueueIsFull) {
  ClusterCoordinator coordinator(strategy_, {.queue_size = 2});
  const auto negate = function("negate", [](const Tensor& x) { return -x; });
  std::vector<RemoteValue<>> values;
  for (int i = 0; i < 200; ++i) values.push_back(coordinator.schedule(negate, torch::tensor(i)));
  coordinator.join();
  for (int i = 0; i < 200; ++i) EXPECT_EQ(coordinator.fetch(values[i]).item<int>(), -i);
}

// Returns a function that fails on the worker for an id that is not in the table.
Function<Tensor(const Tensor&)> lookup() {
  return function("lookup", std::function<Tensor(const Tensor&)>([](const Tensor& ids) {
                    return torch::arange(10).index_select(0, ids);
                  }),
                  {.check_capture = false});
}

TEST_F(CoordinatorTest, RaisesAnErrorOnceWithItsOriginAndThenSchedulesAgain) {
  ClusterCoordinator coordinator(strategy_);
  const auto find = lookup();
  EXPECT_EQ(coordinator.fetch(coordinator.schedule(find, torch::tensor({7}))).item<int64_t>(), 7);
  const auto bad = coordinator.schedule(find, torch::tensor({70}));
  const Error error = error_of([&] { coordinator.join(); });
  EXPECT_THAT(error.what(), HasSubstr("/job:worker/task:"));
  EXPECT_THAT(error.what(), HasSubstr("'lookup'"));
  EXPECT_THAT(error.what(), HasSubstr("aten::index_select"));
  EXPECT_THAT(error.what(), HasSubstr("out of"));
  coordinator.join();
  EXPECT_EQ(error_of([&] { coordinator.fetch(bad); }).message(), error.message());
  EXPECT_EQ(coordinator.fetch(coordinator.schedule(find, torch::tensor({3}))).item<int64_t>(), 3);
}

TEST_F(CoordinatorTest, AnErrorCancelsQueuedClosures) {
  for (const TaskId& task : {TaskId{"worker", 0}, TaskId{"worker", 1}}) cluster_.kill(task);
  ClusterCoordinator coordinator(strategy_);
  const auto find = lookup();
  const auto slow = slow_sum();
  const Tensor numbers = torch::ones({1 << 20});
  find.graph(torch::tensor({1}));
  std::vector<RemoteValue<>> values;
  values.push_back(coordinator.schedule(find, torch::tensor({70})));
  // Slow, so that the worker cannot be done with them before the error arrives.
  for (int i = 1; i < 100; ++i) values.push_back(coordinator.schedule(slow, numbers));
  EXPECT_FALSE(coordinator.done());
  cluster_.start({"worker", 0});
  EXPECT_NE(error_of([&] { coordinator.join(); }).code(), ErrorCode::kOk);
  EXPECT_EQ(error_of([&] { coordinator.fetch(values.back()); }).code(), ErrorCode::kCancelled);
  EXPECT_TRUE(coordinator.done());
}

TEST_F(CoordinatorTest, SendsVariablesOfTheProgramWithTheClosureAndRejectsChangesToThem) {
  const Variable factor("factor", torch::tensor(2.0));
  ClusterCoordinator coordinator(strategy_);
  const auto scale = function("scale", [&](const Tensor& x) { return x * factor.read(); });
  const auto before = coordinator.schedule(scale, torch::tensor(3.0));
  factor.assign(torch::tensor(5.0));
  const auto later = coordinator.schedule(scale, torch::tensor(3.0));
  EXPECT_EQ(coordinator.fetch(before).item<double>(), 6.0);
  EXPECT_EQ(coordinator.fetch(later).item<double>(), 15.0);
  EXPECT_EQ(scale.captures(), 1);

  const auto grow = function("grow", [&](const Tensor& x) { factor.assign_add(x); });
  const Error error = error_of([&] { coordinator.schedule(grow, torch::tensor(1.0)); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("factor"));
  EXPECT_THAT(error.what(), HasSubstr("grow"));
  EXPECT_THAT(error.what(), HasSubstr("scope"));
}

struct Net : torch::nn::Module {
  Net() {
    register_module("a", a);
    register_module("b", b);
  }
  Tensor forward(const Tensor& x) { return b->forward(torch::tanh(a->forward(x))); }
  torch::nn::Linear a{4, 16}, b{16, 1};
};

TEST_F(CoordinatorTest, TrainsANetAsynchronously) {
  torch::manual_seed(3);
  auto net = strategy_.distribute<Net>();
  auto scope = strategy_.scope();
  Sgd optimizer(net, {.lr = 0.05});
  ClusterCoordinator coordinator(strategy_);
  const auto step = function("step", [&](const Tensor& x, const Tensor& y) {
    const Tensor loss = torch::mse_loss(net->forward(x), y);
    optimizer.minimize(loss);
    return loss;
  });
  const Tensor weights = torch::randn({4, 1});
  const auto batch = [&] {
    const Tensor x = torch::randn({32, 4});
    return std::pair(x, torch::tanh(x.matmul(weights)));
  };
  const auto [x, y] = batch();
  const float first = coordinator.fetch(coordinator.schedule(step, x, y)).item<float>();
  for (int i = 0; i < 200; ++i) {
    if (i == 100) optimizer.set_lr(0.01);
    const auto [more_x, more_y] = batch();
    coordinator.schedule(step, more_x, more_y);
  }
  coordinator.join();
  EXPECT_LT(coordinator.fetch(coordinator.schedule(step, x, y)).item<float>(), first / 4);
  EXPECT_EQ(step.captures(), 1);
}

TEST_F(CoordinatorTest, RequeuesTheClosuresOfALostWorkerAndUsesItAgain) {
  auto scope = strategy_.scope();
  const Variable sum("sum", torch::zeros({}, torch::kInt64));
  ClusterCoordinator coordinator(strategy_);
  const auto add = function("add", [&](const Tensor& number) {
    sum.assign_add(number);
    return number;
  });
  constexpr int kClosures = 1000;
  RemoteValue early = coordinator.schedule(add, torch::tensor(int64_t{1}));
  for (int i = 1; i < kClosures; ++i) {
    if (i == 300) cluster_.kill({"worker", 0});
    if (i == 600) cluster_.start({"worker", 0});
    coordinator.schedule(add, torch::tensor(int64_t{1}));
  }
  coordinator.join();
  EXPECT_EQ(sum.read().item<int64_t>(), kClosures);
  EXPECT_EQ(coordinator.fetch(early).item<int64_t>(), 1);
  cluster_.kill({"worker", 1});
  EXPECT_EQ(coordinator.fetch(coordinator.schedule(add, torch::tensor(int64_t{1}))).item<int64_t>(),
            1);
}

TEST_F(CoordinatorTest, NamesALostParameterServer) {
  auto scope = strategy_.scope();
  const Variable a("a", torch::zeros({})), b("b", torch::zeros({}));
  ClusterCoordinator coordinator(strategy_);
  const auto add = function("add", [&](const Tensor& x) {
    a.assign_add(x);
    b.assign_add(x);
  });
  coordinator.schedule(add, torch::ones({}));
  coordinator.join();
  cluster_.restart({"ps", 1});
  coordinator.schedule(add, torch::ones({}));
  try {
    coordinator.join();
    ADD_FAILURE() << "no error";
  } catch (const PsLost& error) {
    EXPECT_EQ(error.origin().task, "/job:ps/task:1");
    EXPECT_THAT(error.what(), HasSubstr("CheckpointManager::restore_or_initialize()"));
  }
  EXPECT_THROW(coordinator.schedule(add, torch::ones({})), PsLost);
  EXPECT_THROW(coordinator.done(), PsLost);
}

TEST_F(CoordinatorTest, DestroyingItCancelsClosuresInFlight) {
  const auto slow = slow_sum();
  const Tensor numbers = torch::ones({1 << 20});
  RemoteValue first, last;
  {
    ClusterCoordinator coordinator(strategy_);
    first = coordinator.schedule(slow, numbers);
    coordinator.join();
    // Slow, so that the workers cannot be done with them before the coordinator is destroyed.
    for (int i = 0; i < 100; ++i) last = coordinator.schedule(slow, numbers);
    const Time limit = after(seconds(20));
    const auto in_flight = [&] {
      for (const WorkerState& worker : coordinator.workers()) {
        if (worker.closures_there > 0) return true;
      }
      return false;
    };
    while (!in_flight() && Clock::real().now() < limit) std::this_thread::yield();
    EXPECT_TRUE(in_flight());
  }
  EXPECT_EQ(error_of([&] { ClusterCoordinator::fetch(last); }).code(), ErrorCode::kCancelled);
  EXPECT_GT(ClusterCoordinator::fetch(first).item<float>(), 0);
}

// A fence costs a call to each server, so a training that goes well has none.
TEST_F(CoordinatorTest, FencesTheServersOnceAClosureFails) {
  auto scope = strategy_.scope();
  const Variable count("count", torch::zeros({}, torch::kInt64));
  ClusterCoordinator coordinator(strategy_);
  const auto add = function("add", [&] { count.assign_add(torch::ones({}, torch::kInt64)); });
  const auto find = function("find", std::function<Tensor(const Tensor&)>([](const Tensor& ids) {
                               return torch::arange(10).index_select(0, ids);
                             }),
                             {.check_capture = false});
  const auto fences = [&] {
    uint64_t calls = 0;
    for (int i = 0; i < 2; ++i) {
      calls += cluster_.describe({"ps", i}).counters.at("rpc_server/trireme.Jobs/Fence/calls");
    }
    return calls;
  };
  for (int i = 0; i < 10; ++i) coordinator.schedule(add);
  coordinator.schedule(find, torch::tensor({1}));
  coordinator.join();
  EXPECT_EQ(count.read().item<int64_t>(), 10);
  EXPECT_EQ(fences(), 0u);
  for (uint64_t errors = 1; errors <= 2; ++errors) {
    const RemoteValue failed = coordinator.schedule(find, torch::tensor({70}));
    EXPECT_THAT(error_of([&] { coordinator.fetch(failed); }).what(), HasSubstr("function 'find'"));
    EXPECT_EQ(fences(), 2 * errors) << "fetch() has waited for both servers";
    EXPECT_THAT(error_of([&] { coordinator.join(); }).what(), HasSubstr("function 'find'"));
    EXPECT_EQ(fences(), 2 * errors);
    coordinator.schedule(add);  // The fence does not concern later closures.
    coordinator.join();
  }
  EXPECT_EQ(count.read().item<int64_t>(), 12);
}

TEST(Coordinator, RejectsAClusterWithoutWorkers) {
  InProcessTestCluster cluster({.workers = 0, .ps = 1});
  ParameterServerStrategy strategy{Cluster(cluster.spec())};
  EXPECT_THAT(error_of([&] { ClusterCoordinator coordinator(strategy); }).what(),
              HasSubstr("worker"));
}

}  // namespace
}  // namespace trireme
