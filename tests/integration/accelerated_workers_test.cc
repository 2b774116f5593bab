// Workers that train together, as threads of one process, and compute on the stand-in accelerator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <string>
#include <vector>

#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/model/model.h"
#include "trireme/testing/accelerator/stand_in_fixture.h"
#include "trireme/testing/mirrored_training.h"
#include "trireme/testing/worker_threads.h"

namespace trireme {
namespace {

using torch::Tensor;

class AcceleratedWorkersTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { register_stand_in_accelerator({.devices = 3}); }

  static MultiWorkerMirroredStrategyOptions on(const std::vector<std::string>& devices) {
    return {.devices = devices,
            .lease = std::chrono::seconds(10),
            .connect_timeout = std::chrono::seconds(60)};
  }

  // Trains a net on two workers, and returns the distance of the worst from one process.
  template <typename Net>
  static double distance(const std::vector<std::vector<std::string>>& devices_of_workers) {
    const auto expected = train_for_50_steps<Net>(Strategy(), torch::kDouble);
    const WorkerThreads workers(2);
    std::vector<std::vector<Tensor>> trained(2);
    EXPECT_THAT(workers.run([&](const Cluster& me) {
      const int worker = me.task->index;
      trained[worker] = train_for_50_steps<Net>(
          MultiWorkerMirroredStrategy(me, on(devices_of_workers[worker])), torch::kDouble);
    }),
                testing::Each(""));
    return std::max(largest_distance(trained[0], expected), largest_distance(trained[1], expected));
  }
};

TEST_F(AcceleratedWorkersTest, TrainAConvNetToTheWeightsOfOneProcess) {
  const int64_t before[] = {stand_in_counters(0).kernels, stand_in_counters(1).kernels};
  EXPECT_LE(distance<ConvNet>({{"/gpu:0"}, {"/gpu:1"}}), 1e-9);
  for (int device : {0, 1}) EXPECT_GT(stand_in_counters(device).kernels - before[device], 1000);
}

TEST_F(AcceleratedWorkersTest, WithTwoReplicasTrainATransformerLayerToTheWeightsOfOneProcess) {
  EXPECT_LE(distance<TransformerNet>({{"/gpu:0", "/gpu:1"}, {"/gpu:2", "/gpu:0"}}), 1e-9);
}

// The only gradient has a bucket for itself. (The stand-in has no sparse tensors.)
TEST_F(AcceleratedWorkersTest, CombineGradientsAndTheValuesOfTheFirstReplica) {
  for (const bool shortened : {false, true}) {
    const WorkerThreads workers(2);
    EXPECT_THAT(workers.run([&](const Cluster& me) {
      const int worker = me.task->index;
      auto options = on({worker == 0 ? "/gpu:0" : "/gpu:1"});
      if (shortened) options.gradient_dtype = torch::kBFloat16;
      const MultiWorkerMirroredStrategy strategy(me, options);
      const auto scope = strategy.scope();
      const Variable first("first", torch::zeros({2}),
                           {.aggregation = Aggregation::kOnlyFirstReplica});
      const std::vector<Variable> weights = {Variable("weight", torch::zeros({4, 2}))};
      Sgd optimizer(weights, {.lr = 1});
      const auto step = function("step", [&](const Tensor& x) {
        strategy.run([&] {
          first.assign(x + 5);
          optimizer.minimize((weights[0].read() * x).sum());
        });
      });
      step(torch::ones({2}) * (worker + 1));
      EXPECT_TRUE(first.read().equal(torch::full({2}, 6.0f))) << first.read();
      EXPECT_TRUE(weights[0].read().equal(torch::full({4, 2}, -3.0f))) << weights[0].read();
    }),
                testing::Each(""));
  }
}

// Both workers call their device gpu:0, as on two machines with one GPU each.
TEST_F(AcceleratedWorkersTest, DrawDifferentNumbersOnDevicesOfOneName) {
  const WorkerThreads workers(2);
  std::vector<Tensor> drawn(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    const MultiWorkerMirroredStrategy strategy(me, on({"/gpu:0"}));
    const auto scope = strategy.scope();
    const Variable w("w", torch::zeros({8}));
    const auto draw = function("draw", [&] {
      return strategy.run([&] { return torch::rand({8}) + w.read(); }).values()[0];
    });
    drawn[me.task->index] = draw();
  }),
              testing::Each(""));
  EXPECT_FALSE(drawn[0].equal(drawn[1])) << drawn[0];
}

}  // namespace
}  // namespace trireme
