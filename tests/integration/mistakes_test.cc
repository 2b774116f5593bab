// Mistakes in a program that uses a cluster. Each is an error that says what is wrong and what to
// do, and none is silent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

#include "trireme/base/status.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/data/dataset.h"
#include "trireme/optim/optimizer.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/runtime/session.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/in_process_test_cluster.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using torch::Tensor;

// A cluster with a worker and a parameter server, and a step for it that trains a net.
class ClusterMistakes : public testing::Test {
 protected:
  Function<Tensor(const Tensor&)> training(torch::nn::Linear net, const Optimizer& optimizer) {
    return function("train", std::function<Tensor(const Tensor&)>([=](const Tensor& x) mutable {
                      const Tensor loss = net(x).mean();
                      optimizer.minimize(loss);
                      return loss;
                    }));
  }
  // Returns the error of a scheduled step, which schedule() or join() throws.
  static Error error_of_closure(ClusterCoordinator& coordinator,
                                const Function<Tensor(const Tensor&)>& step, const Tensor& x) {
    return error_of([&] {
      coordinator.schedule(step, x);
      coordinator.join(seconds(60));
    });
  }

  const Tensor x_ = torch::ones({8, 3});
  InProcessTestCluster cluster_{{.workers = 1, .ps = 1}};
  ParameterServerStrategy strategy_{Cluster(cluster_.spec())};
};

TEST(SetupMistakes, AStrategyWithoutParameterServers) {
  InProcessTestCluster cluster({.workers = 1, .ps = 0});
  EXPECT_THAT(error_text([&] { ParameterServerStrategy strategy{Cluster(cluster.spec())}; }),
              HasSubstr("the cluster has no ps tasks to keep variables on; add a ps job"));
}

TEST(SetupMistakes, ACoordinatorWithoutWorkers) {
  InProcessTestCluster cluster({.workers = 0, .ps = 1});
  ParameterServerStrategy strategy{Cluster(cluster.spec())};
  EXPECT_THAT(error_text([&] { ClusterCoordinator coordinator(strategy); }),
              HasSubstr("the cluster has no workers to run closures on; add a worker job"));
}

TEST(SetupMistakes, NoClusterInTheEnvironment) {
  const auto empty = [](const std::string&) { return std::optional<std::string>(); };
  EXPECT_THAT(error_text([&] { ParameterServerStrategy strategy{TfConfigResolver(empty)}; }),
              HasSubstr("no cluster was given; set TF_CONFIG"));
}

TEST(SetupMistakes, AParameterServerThatIsNotStarted) {
  PortReservation port = value_or_throw(PortReservation::make());
  const Cluster cluster(ClusterSpec{{"worker", {"127.0.0.1:1"}}, {"ps", {port.address()}}});
  EXPECT_THAT(error_text([&] {
                ParameterServerStrategy strategy(cluster, {.connect_timeout = seconds(1)});
              }),
              AllOf(HasSubstr("/job:ps/task:0 (" + port.address() + ")"),
                    HasSubstr("no process listens there"), HasSubstr("is the task running?")));
}

TEST(SetupMistakes, ASessionTargetThatIsNotAnAddress) {
  EXPECT_THAT(error_text([] { Session session("localhost:2222"); }),
              AllOf(HasSubstr("'localhost:2222'"), HasSubstr("grpc://HOST:PORT")));
}

TEST(SetupMistakes, ASessionWithoutAServer) {
  PortReservation port = value_or_throw(PortReservation::make());
  EXPECT_THAT(
      error_text([&] { Session session("grpc://" + port.address(), {.timeout = seconds(1)}); }),
      AllOf(HasSubstr(port.address()), HasSubstr("no process listens there")));
  EXPECT_THAT(
      error_text([] { Session session("grpc://no-such-host.invalid:1", {.timeout = seconds(4)}); }),
      AllOf(HasSubstr("no-such-host.invalid:1"), HasSubstr("host name cannot be resolved")));
}

TEST_F(ClusterMistakes, AChangeOfAVariableOfTheProgram) {
  const Variable v("v", torch::zeros({}));
  ClusterCoordinator coordinator(strategy_);
  const auto add = function("add", [&] { v.assign_add(torch::ones({})); });
  EXPECT_THAT(error_text([&] { coordinator.schedule(add); }),
              AllOf(StartsWith("function 'add': it changes variable '" + v.name() + "'"),
                    HasSubstr("in the strategy's scope()")));
}

TEST_F(ClusterMistakes, ANetMadeOutsideOfTheScope) {
  torch::nn::Linear net(3, 1);
  const Sgd optimizer(net, {.lr = 0.1});
  ClusterCoordinator coordinator(strategy_);
  EXPECT_THAT(
      error_of_closure(coordinator, training(net, optimizer), x_).what(),
      AllOf(StartsWith("function 'train': it changes variable "),
            HasSubstr("in the client program's memory"), HasSubstr("in the strategy's scope()")));
}

// Not mistakes: the variables of a net are made where the optimizer is, and an optimizer follows
// its variables.
TEST_F(ClusterMistakes, NetAndOptimizerNeedNotBothBeMadeInTheScope) {
  ClusterCoordinator coordinator(strategy_);
  torch::nn::Linear outside(3, 1);
  std::optional<Sgd> inside;
  {
    const auto scope = strategy_.scope();
    inside.emplace(outside, SgdOptions{.lr = 0.1});
  }
  const auto distributed = strategy_.distribute<torch::nn::Linear>(3, 1);
  const Adam of_distributed(distributed, {.lr = 0.1});
  for (const auto& step : {training(outside, *inside), training(distributed, of_distributed)}) {
    const float first = coordinator.fetch(coordinator.schedule(step, x_)).item<float>();
    EXPECT_LT(coordinator.fetch(coordinator.schedule(step, x_)).item<float>(), first);
  }
}

TEST_F(ClusterMistakes, AGradientOutsideOfACapturedFunction) {
  const auto net = strategy_.distribute<torch::nn::Linear>(3, 1);
  const Sgd optimizer(net, {.lr = 0.1});
  const auto message = AllOf(HasSubstr("its variables are on parameter servers"),
                             HasSubstr("tr::function()"), HasSubstr("apply_gradients()"));
  const Tensor loss = torch::ones({}).requires_grad_(true) * 2;
  const Error error = error_of([&] { optimizer.minimize(loss); });
  EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(error.what(), AllOf(StartsWith("the sgd optimizer of variable 'weight"),
                                  HasSubstr("minimize(): "), message));
  optimizer.zero_grad();
  EXPECT_THAT(error_text([&] { optimizer.step(); }), AllOf(HasSubstr("step(): "), message));
  const Tensor before = optimizer.variables()[1].read();
  optimizer.apply_gradients({Tensor(), torch::ones({1})});
  EXPECT_TRUE(optimizer.variables()[1].read().allclose(before - 0.1));
}

TEST_F(ClusterMistakes, AReadAfterMinimize) {
  auto net = strategy_.distribute<torch::nn::Linear>(3, 1);
  const Adam optimizer(net, {.lr = 0.1});
  ClusterCoordinator coordinator(strategy_);
  const auto step = function("step", std::function<Tensor(const Tensor&)>([&](const Tensor& x) {
                               optimizer.minimize(net(x).mean());
                               return net(x).mean();
                             }));
  EXPECT_THAT(
      error_of_closure(coordinator, step, x_).what(),
      AllOf(HasSubstr("variable '"),
            HasSubstr("of function 'step' reads it after its optimizer was given a gradient"),
            HasSubstr("in another function")));
}

TEST_F(ClusterMistakes, VariablesOfTwoStrategies) {
  InProcessTestCluster other_cluster({.workers = 1, .ps = 1});
  ParameterServerStrategy other{Cluster(other_cluster.spec())};
  auto net = strategy_.distribute<torch::nn::Linear>(3, 1);
  const Sgd optimizer(net, {.lr = 0.1});
  ClusterCoordinator coordinator(other);
  EXPECT_THAT(error_of_closure(coordinator, training(net, optimizer), x_).what(),
              AllOf(StartsWith("function 'train': variable '"),
                    HasSubstr("was made in the scope of another strategy")));
  const auto scope = other.scope();
  const Variable v("v", torch::zeros({}));
  const auto both = function("both", std::function<Tensor(const Tensor&)>([&](const Tensor& x) {
                               const Tensor loss = net(x).mean();
                               v.assign_add(loss);
                               return loss;
                             }));
  EXPECT_THAT(error_of_closure(coordinator, both, x_).what(),
              AllOf(StartsWith("function 'both': "), HasSubstr("of two strategies")));
}

// Not a mistake.
TEST_F(ClusterMistakes, TwoCoordinatorsOfOneStrategy) {
  ClusterCoordinator one(strategy_), two(strategy_);
  const auto sum = function("sum", [](const Tensor& x) { return x.sum(); });
  const auto first = one.schedule(sum, x_), second = two.schedule(sum, x_);
  EXPECT_EQ(one.fetch(first).item<float>() + two.fetch(second).item<float>(), 48);
}

TEST_F(ClusterMistakes, ABatchOfAnotherShape) {
  auto net = strategy_.distribute<torch::nn::Linear>(3, 1);
  const Sgd optimizer(net, {.lr = 0.1});
  ClusterCoordinator coordinator(strategy_);
  const auto step = training(net, optimizer);
  coordinator.schedule(step, x_);
  // The error is LibTorch's own, with the function added.
  try {
    coordinator.schedule(step, torch::ones({8, 4}));
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_THAT(
        error.what_without_backtrace(),
        AllOf(HasSubstr("(8x4 and 3x1)"), HasSubstr("function 'train'"), HasSubstr("Float[8, 4]")));
  }
  coordinator.join();
}

TEST_F(ClusterMistakes, AnIndexThatIsNotInTheTable) {
  auto table = strategy_.distribute<torch::nn::Embedding>(10, 2);
  ClusterCoordinator coordinator(strategy_);
  const auto lookup = function("lookup", std::function<Tensor(const Tensor&)>(
                                             [&](const Tensor& i) { return table(i).sum(); }));
  coordinator.schedule(lookup, torch::tensor({1, 2}));
  coordinator.join();
  const Error error = error_of_closure(coordinator, lookup, torch::tensor({1, 20}));
  EXPECT_EQ(error.code(), ErrorCode::kOutOfRange);
  EXPECT_THAT(error.what(),
              AllOf(StartsWith("/job:worker/task:0: function 'lookup': variable 'weight"),
                    HasSubstr("row 20 does not exist; it has 10 rows")));
}

TEST_F(ClusterMistakes, DataOfAWorkerThatEnds) {
  ClusterCoordinator coordinator(strategy_);
  const auto data = coordinator.create_per_worker_dataset(Dataset::range(3));
  const auto twice = function("twice", [](Iterator& i) { return i.next() * 2; });
  // The iterator does not begin again with the next epoch; the message says how to make it do so.
  for (int epoch = 0; epoch < 2; ++epoch) {
    const Error error = error_of([&] {
      for (int i = 0; i < 4; ++i) coordinator.schedule(twice, data.iterator());
      coordinator.join(seconds(60));
    });
    EXPECT_EQ(error.code(), ErrorCode::kEndOfData);
    EXPECT_STREQ(error.what(),
                 "/job:worker/task:0: function 'twice': iterator over range(0, 3): there are no "
                 "more elements; add repeat() to the dataset to start over");
  }
}

TEST_F(ClusterMistakes, DataOfAnotherCoordinator) {
  ClusterCoordinator one(strategy_), two(strategy_);
  const auto data = one.create_per_worker_dataset(Dataset::range(3));
  const auto twice = function("twice", [](Iterator& i) { return i.next() * 2; });
  EXPECT_THAT(error_text([&] { two.schedule(twice, data.iterator()); }),
              AllOf(StartsWith("function 'twice': "), HasSubstr("of another coordinator")));
  one.schedule(twice, data.iterator());
  one.join();
}

TEST_F(ClusterMistakes, DataOfTheProgramThatEnds) {
  ClusterCoordinator coordinator(strategy_);
  const auto twice = function("twice", [](Iterator& i) { return i.next() * 2; });
  Iterator numbers = Dataset::range(1).iterator();
  coordinator.schedule(twice, numbers);
  EXPECT_THAT(error_text([&] { coordinator.schedule(twice, numbers); }),
              StartsWith("function 'twice': argument 0, iterator over range(0, 1), has no more"));
}

TEST_F(ClusterMistakes, AnEmptyRemoteValue) {
  EXPECT_THAT(error_text([] { ClusterCoordinator::fetch(RemoteValue()); }),
              AllOf(HasSubstr("the remote value is empty"), HasSubstr("schedule()")));
}

TEST_F(ClusterMistakes, TwoNativeFunctionsOfOneName) {
  const auto first = native_function("mistaken", [](const Tensor& t) { return t; });
  EXPECT_THAT(
      error_text([] { native_function("mistaken", [](const Tensor& t) { return t * 2; }); }),
      AllOf(StartsWith("native function 'mistaken': "), HasSubstr("choose another name")));
}

TEST_F(ClusterMistakes, AParameterServerThatIsLost) {
  auto net = strategy_.distribute<torch::nn::Linear>(3, 1);
  const Sgd optimizer(net, {.lr = 0.1});
  ClusterCoordinator coordinator(strategy_);
  const auto step = training(net, optimizer);
  coordinator.schedule(step, x_);
  coordinator.join();
  cluster_.kill({"ps", 0});
  const Error error = error_of_closure(coordinator, step, x_);
  EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
  EXPECT_THAT(
      error.what(),
      testing::MatchesRegex(
          "/job:ps/task:0: the parameter server is lost, together with its variables: cannot reach "
          "/job:ps/task:0 at 127.0.0.1:[0-9]+ for /trireme.Hello/Hello \\(.*\\); is the task "
          "running\\? Check with `trireme status`( \\(after [0-9]+ attempts\\))?\\. Start this ps "
          "task again, then the program, as `trireme launch --restart` does\\. The program "
          "continues from its newest checkpoint if its fit\\(\\) has the callback "
          "BackupAndRestore, or if it calls CheckpointManager::restore_or_initialize\\(\\) before "
          "it trains; otherwise it begins afresh"));
}

TEST_F(ClusterMistakes, WorkersThatAreAllStopped) {
  ClusterCoordinator coordinator(strategy_);
  const auto sum = function("sum", [](const Tensor& x) { return x.sum(); });
  coordinator.schedule(sum, x_);
  coordinator.join();
  cluster_.kill({"worker", 0});
  const Error error = error_of([&] {
    coordinator.schedule({.deadline = milliseconds(200)}, sum, x_);
    coordinator.join(seconds(60));
  });
  EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("of function 'sum'"), HasSubstr("by its deadline")));
}

}  // namespace
}  // namespace trireme
