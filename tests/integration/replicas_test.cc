// Replicas inside of workers train as one program would train on all of their data, draw each
// element of a dataset once, and aggregate their updates as the variable asks for.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/data/dataset.h"
#include "trireme/optim/optimizer.h"
#include "trireme/testing/in_process_test_cluster.h"

namespace trireme {
namespace {

using torch::Tensor;

class ScheduledReplicasTest : public testing::Test {
 protected:
  InProcessTestCluster cluster_{{.workers = 2, .ps = 2}};
  ParameterServerStrategy strategy_{Cluster(cluster_.spec()), {.replicas = 2}};
};

struct Net : torch::nn::Module {
  Net() {
    register_module("words", words);
    register_module("out", out);
  }
  Tensor forward(const Tensor& ids) { return out->forward(words->forward(ids).flatten(1).tanh()); }
  torch::nn::Embedding words{10, 4};
  torch::nn::Linear out{40, 1};
};

// Runs closures one after the other, each with two replicas that draw from the program's iterator,
// and compares losses and variables with those of a local step on both batches at once.
template <typename Optimizer, typename Options>
void expect_same_training(const ParameterServerStrategy& strategy, const Options& options) {
  constexpr int kSteps = 10, kShare = 8;
  torch::manual_seed(1);
  auto here = std::make_shared<Net>();
  torch::manual_seed(1);
  auto there = strategy.distribute<Net>();
  const Optimizer local(here, options), remote(there, options);
  const auto local_step = function("local", [&](Iterator& batches) {
    auto [ids, y] = batches.next<2>();
    const Tensor loss = torch::mse_loss(here->forward(ids), y);
    local.minimize(loss);
    return loss;
  });
  const auto remote_step = function("remote", [&](Iterator& batches) {
    const auto losses = strategy.run(
        [&](Iterator& mine) {
          auto [ids, y] = mine.next<2>();
          const Tensor loss =
              torch::mse_loss(there->forward(ids), y) / strategy.num_replicas_in_sync();
          remote.minimize(loss);
          return loss;
        },
        batches);
    return strategy.reduce(ReduceOp::kSum, losses);
  });
  // Every batch holds every id, because the local program has a dense gradient, with which an
  // optimizer also moves rows whose ids are not in the batch.
  const Tensor ids = torch::rand({kSteps * 2 * kShare, 10}).argsort(int64_t{1});
  const Tensor y = torch::randn({kSteps * 2 * kShare, 1});
  const Dataset examples = Dataset::from_tensors({ids, y});
  Iterator whole = examples.batch(2 * kShare).iterator(),
           shares = examples.batch(kShare).iterator();
  ClusterCoordinator coordinator(strategy);
  for (int i = 0; i < kSteps; ++i) {
    const float loss =
        coordinator.fetch(coordinator.schedule(remote_step, shares)).template item<float>();
    EXPECT_NEAR(loss, local_step(whole).template item<float>(), 1e-5);
  }
  coordinator.join();
  const auto mine = track(here), theirs = track(there);
  for (size_t i = 0; i < mine.size(); ++i) {
    EXPECT_TRUE(theirs[i].read().allclose(mine[i].read(), 1e-5, 1e-5)) << mine[i].name();
  }
}

TEST_F(ScheduledReplicasTest, TrainAsOneOnAllOfTheirDataWithMomentum) {
  expect_same_training<Sgd>(strategy_, SgdOptions{.lr = 0.1, .momentum = 0.9});
}

TEST_F(ScheduledReplicasTest, TrainAsOneOnAllOfTheirDataWithAdam) {
  expect_same_training<Adam>(strategy_, AdamOptions{.lr = 0.01});
}

TEST_F(ScheduledReplicasTest, DrawEachElementOnceAndCountOnce) {
  constexpr int64_t kNumbers = 1000;
  auto scope = strategy_.scope();
  const Variable sum("sum", torch::zeros({}, torch::kInt64), {.aggregation = Aggregation::kSum}),
      closures("closures", torch::zeros({}, torch::kInt64),
               {.aggregation = Aggregation::kOnlyFirstReplica});
  const auto add = function("add", [&](Iterator& numbers) {
    strategy_.run(
        [&](Iterator& mine) {
          sum.assign_add(mine.next());
          closures.assign_add(torch::ones({}, torch::kInt64));
        },
        numbers);
  });
  Iterator numbers = Dataset::range(1, kNumbers + 1).iterator();
  ClusterCoordinator coordinator(strategy_);
  for (int i = 0; i < kNumbers / 2; ++i) coordinator.schedule(add, numbers);
  coordinator.join();
  EXPECT_EQ(sum.read().item<int64_t>(), kNumbers * (kNumbers + 1) / 2);
  EXPECT_EQ(closures.read().item<int64_t>(), kNumbers / 2);
}

}  // namespace
}  // namespace trireme
