#include "trireme/strategy/parameter_server_strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trireme/base/error.h"
#include "trireme/capture/device_scope.h"
#include "trireme/data/dataset.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/optim/optimizer.h"
#include "trireme/ps/test_servers.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using torch::Tensor;

class ReplicasTest : public testing::Test {
 protected:
  TestServers cluster_{2};
  ParameterServerStrategy strategy_{Cluster(cluster_.spec()),
                                    {.partitioner = FixedPartitioner(2), .replicas = 2}};
};

struct Net : torch::nn::Module {
  Net() {
    register_module("a", a);
    register_module("b", b);
  }
  Tensor forward(const Tensor& x) { return b->forward(torch::tanh(a->forward(x))); }
  torch::nn::Linear a{4, 16}, b{16, 1};
};

// Compares two replicas that train on half of the batch each, with variables on the servers, with
// local training on the whole batch.
template <typename Optimizer, typename Options>
void expect_same_training(const ParameterServerStrategy& strategy, const Options& options) {
  constexpr int kSteps = 20, kShare = 8;
  torch::manual_seed(1);
  auto here = std::make_shared<Net>();
  torch::manual_seed(1);
  auto there = strategy.distribute<Net>();
  const Optimizer local(here, options), remote(there, options);
  const Tensor x = torch::randn({kSteps * 2 * kShare, 4}), y = x.sum(1, true).tanh();
  const auto local_step = function("local", [&](Iterator& batches) {
    auto [x, y] = batches.next<2>();
    const Tensor loss = torch::mse_loss(here->forward(x), y);
    local.minimize(loss, {.clip_norm = 0.5});
    return loss;
  });
  const auto remote_step = function("remote", [&](Iterator& batches) {
    const PerReplica<Tensor> losses = strategy.run(
        [&](Iterator& mine) {
          auto [x, y] = mine.next<2>();
          const Tensor loss =
              torch::mse_loss(there->forward(x), y) / strategy.num_replicas_in_sync();
          remote.minimize(loss, {.clip_norm = 0.5});
          return loss;
        },
        batches);
    return strategy.reduce(ReduceOp::kSum, losses);
  });
  Iterator whole = Dataset::from_tensors({x, y}).batch(2 * kShare).iterator(),
           shares = Dataset::from_tensors({x, y}).batch(kShare).iterator();
  for (int i = 0; i < kSteps; ++i) {
    EXPECT_NEAR(remote_step(shares).template item<float>(),
                local_step(whole).template item<float>(), 1e-5);
  }
  EXPECT_EQ(remote_step.captures(), 1);
  EXPECT_EQ(error_of([&] { remote_step(shares); }).code(), ErrorCode::kEndOfData);
  const auto mine = track(here), theirs = track(there);
  for (size_t i = 0; i < mine.size(); ++i) {
    EXPECT_TRUE(theirs[i].read().allclose(mine[i].read(), 1e-5, 1e-5)) << mine[i].name();
  }
}

TEST_F(ReplicasTest, TrainLikeOneModelOnTheWholeBatchWithMomentum) {
  expect_same_training<Sgd>(strategy_, SgdOptions{.lr = 0.1, .momentum = 0.9});
}

TEST_F(ReplicasTest, TrainLikeOneModelOnTheWholeBatchWithAdam) {
  expect_same_training<Adam>(strategy_, AdamOptions{.lr = 0.01});
}

TEST_F(ReplicasTest, AStepMakesOnePullAndOnePushPerServer) {
  auto net = strategy_.distribute<Net>();
  const Sgd optimizer(net, {.lr = 0.1});
  const auto step = function("step", [&](const Tensor& x) {
    strategy_.run([&] { optimizer.minimize(net->forward(x).sum()); });
  });
  step(torch::ones({2, 4}));
  const uint64_t pulls = cluster_.calls("Pull"), pushes = cluster_.calls("Push");
  step(torch::ones({2, 4}));
  EXPECT_EQ(cluster_.calls("Pull") - pulls, 2u);
  EXPECT_EQ(cluster_.calls("Push") - pushes, 2u);
}

TEST_F(ReplicasTest, GetTheirOwnPerReplicaArgumentsAndShareTheOthers) {
  const auto step = function("step", [&](const PerReplica<Tensor>& each, const Tensor& all) {
    return strategy_.run(
        [](const Tensor& mine, const Tensor& all, int number) {
          return std::pair(mine + all * replica_id(), mine * number);
        },
        each, all, 3);
  });
  const PerReplica<std::pair<Tensor, Tensor>> result =
      step(PerReplica<Tensor>({torch::tensor(1.0), torch::tensor(2.0)}), torch::tensor(10.0));
  ASSERT_EQ(result.size(), 2u);
  EXPECT_EQ(result[0].first.item<double>(), 1);
  EXPECT_EQ(result[1].first.item<double>(), 12);
  EXPECT_EQ(result.values()[1].second.item<double>(), 6);

  const PerReplica<Tensor> three({Tensor(), Tensor(), Tensor()});
  const Error error = error_of([&] { strategy_.run([](const Tensor&) {}, three); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("3 values for 2 replicas"));
}

TEST_F(ReplicasTest, DrawFromTheirOwnIterators) {
  PerReplica<Iterator> iterators(
      {Dataset::range(0, 3).iterator(), Dataset::range(10, 13).iterator()});
  const auto step = function("step", [&](PerReplica<Iterator>& iterators) {
    return strategy_.run([](Iterator& mine) { return mine.next() * 1; }, iterators);
  });
  for (int i = 0; i < 3; ++i) {
    const auto drawn = step(iterators);
    EXPECT_EQ(drawn[0].item<int64_t>(), i);
    EXPECT_EQ(drawn[1].item<int64_t>(), 10 + i);
  }
}

TEST_F(ReplicasTest, AreReducedElementByElement) {
  using Results = std::map<std::string, std::vector<Tensor>>;
  const PerReplica<Results> values({{{"a", {torch::tensor({1.0, 2.0})}}, {"b", {}}},
                                    {{"a", {torch::tensor({3.0, 8.0})}}, {"b", {}}}});
  EXPECT_TRUE(strategy_.reduce(ReduceOp::kSum, values)["a"][0].equal(torch::tensor({4.0, 10.0})));
  EXPECT_TRUE(strategy_.reduce(ReduceOp::kMean, values)["a"][0].equal(torch::tensor({2.0, 5.0})));
  EXPECT_THAT(
      error_of([&] {
        strategy_.reduce(ReduceOp::kSum, PerReplica<Tensor>({torch::ones({2}), torch::ones({1})}));
      }).what(),
      HasSubstr(
          "replica 1 returned a tensor of shape [1], but the replicas before it returned [2]"));
}

TEST_F(ReplicasTest, CombineAssignmentsByTheAggregationOfTheVariable) {
  auto scope = strategy_.scope();
  const Variable sum("sum", torch::zeros({}), {.aggregation = Aggregation::kSum}),
      mean("mean", torch::zeros({}), {.aggregation = Aggregation::kMean}),
      first("first", torch::zeros({}), {.aggregation = Aggregation::kOnlyFirstReplica});
  const auto body = [&](const Tensor& x) {
    strategy_.run([&] {
      const Tensor mine = x + 10 * replica_id();
      sum.assign_add(mine);
      mean.assign(mine);
      first.assign_sub(mine);
    });
  };
  function("step", body)(torch::tensor(1.0f));
  body(torch::tensor(1.0f));  // The same without a captured function.
  EXPECT_EQ(sum.read().item<float>(), 24);
  EXPECT_EQ(mean.read().item<float>(), 6);
  EXPECT_EQ(first.read().item<float>(), -2);
}

struct Normed : torch::nn::Module {
  Normed() { register_module("norm", norm); }
  torch::nn::BatchNorm1d norm{3};
};

TEST_F(ReplicasTest, WriteBatchNormStatisticsReplicaByReplica) {
  auto here = std::make_shared<Normed>();
  track(here);
  auto there = strategy_.distribute<Normed>();
  const Tensor x = torch::randn({2, 8, 3});
  for (int replica = 0; replica < 2; ++replica) here->norm->forward(x[replica]);
  const auto step = function("step", [&](const Tensor& x) {
    strategy_.run([&] { there->norm->forward(x[replica_id()]); });
  });
  step(x);
  const auto mine = track(here), theirs = track(there);
  for (size_t i = 0; i < mine.size(); ++i) {
    EXPECT_TRUE(theirs[i].read().allclose(mine[i].read())) << mine[i].name();
  }
}

TEST_F(ReplicasTest, OneReplicaGivesTheSameGraphAsNoReplicas) {
  const ParameterServerStrategy strategy(Cluster(cluster_.spec()));
  EXPECT_EQ(strategy.num_replicas_in_sync(), 1);
  auto net = strategy.distribute<Net>();
  const Adam optimizer(net, {.lr = 0.1});
  const auto body = [&](const Tensor& x) {
    const Tensor loss = net->forward(x).sum();
    optimizer.minimize(loss);
    return loss;
  };
  const auto with = function("step", [&](const Tensor& x) {
    return strategy.reduce(ReduceOp::kMean, strategy.run(body, x));
  });
  const auto without = function("step", body);
  const Tensor x = torch::ones({2, 4});
  EXPECT_EQ(with.graph(x).explain(), without.graph(x).explain());
}

TEST_F(ReplicasTest, RejectsAStrategyWithoutReplicas) {
  EXPECT_EQ(
      error_of([&] { ParameterServerStrategy(Cluster(cluster_.spec()), {.replicas = 0}); }).code(),
      ErrorCode::kInvalidArgument);
}

class VariableScopesTest : public testing::Test {
 protected:
  // Returns the shards of a variable that is made in the scopes of the strategy and of a device.
  std::vector<std::string> shards_on(const std::string& device) {
    const auto scope = strategy_.scope();
    const DeviceScope on(device);
    return Variable("v", torch::zeros({4})).shards();
  }

  TestServers cluster_{2};
  ParameterServerStrategy strategy_{Cluster(cluster_.spec()), {.partitioner = FixedPartitioner(2)}};
};

TEST_F(VariableScopesTest, APsTaskHoldsTheWholeVariable) {
  EXPECT_THAT(shards_on("/job:ps/task:1"), ElementsAre("/job:ps/task:1"));
  EXPECT_THAT(shards_on("/job:ps/task:1/CPU:0"), ElementsAre("/job:ps/task:1"));
  EXPECT_THAT(shards_on("/job:ps"), ElementsAre("/job:ps/task:0", "/job:ps/task:1"));
  EXPECT_THAT(shards_on("/cpu:0"), ElementsAre("/job:ps/task:0", "/job:ps/task:1"));
}

TEST_F(VariableScopesTest, AnotherTaskIsAnError) {
  EXPECT_EQ(error_text([&] { shards_on("/job:worker/task:0"); }),
            "variable 'v': it is made in the scope of device '/job:worker/task:0', but inside of "
            "the strategy's scope, which puts variables on /job:ps/task:0 to 1; leave one of the "
            "two scopes");
  for (const char* device : {"/job:ps/task:2", "/job:worker", "/task:0"}) {
    EXPECT_EQ(error_of([&] { shards_on(device); }).code(), ErrorCode::kInvalidArgument) << device;
  }
}

TEST_F(VariableScopesTest, AGpuHasNoEffectAndThatIsTold) {
  testing::internal::CaptureStderr();
  EXPECT_THAT(shards_on("/gpu:905"), ElementsAre("/job:ps/task:0", "/job:ps/task:1"));
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      HasSubstr("the scope of device '/gpu:905' has no effect on variables of the strategy, "
                "which are on the ps tasks, in the memory of the host"));
}

}  // namespace
}  // namespace trireme
