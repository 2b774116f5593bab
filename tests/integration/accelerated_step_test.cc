// Captured steps on the stand-in accelerator: moves, streams, and what overlaps.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <iostream>
#include <vector>

#include "trireme/capture/device_scope.h"
#include "trireme/distribute/strategy.h"
#include "trireme/function/function.h"
#include "trireme/optim/optimizer.h"
#include "trireme/testing/accelerator/stand_in_fixture.h"
#include "trireme/testing/mirrored_training.h"

namespace trireme {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

class AcceleratedStepTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { register_stand_in_accelerator({.devices = 3}); }
  void TearDown() override { set_stand_in_kernel_delay({}); }

  // Runs `step` with a delay of 1 ms for each kernel, and returns its milliseconds.
  static double slow_milliseconds(const std::function<void()>& step) {
    set_stand_in_kernel_delay(std::chrono::milliseconds(1));
    const double time = shortest([&] { return milliseconds_of(step); });
    set_stand_in_kernel_delay({});
    return time;
  }
  // Returns the milliseconds of the kernels of device 0 in one run of `step` with that delay.
  static double busy_milliseconds(const std::function<void()>& step) {
    set_stand_in_kernel_delay(std::chrono::milliseconds(1));
    const Duration before = stand_in_counters(0).busy;
    step();
    const Duration busy = stand_in_counters(0).busy - before;
    set_stand_in_kernel_delay({});
    return std::chrono::duration<double, std::milli>(busy).count();
  }
};

TEST_F(AcceleratedStepTest, MovesValuesBetweenDevices) {
  const auto body = [](const Tensor& x) {
    Tensor a, b;
    {
      const DeviceScope on("/gpu:0");
      a = (x * 2).t();
    }
    {
      const DeviceScope on("/gpu:1");
      b = torch::relu(a + torch::ones({3, 4})).add_(1);
    }
    return std::vector<Tensor>{b.sum() + a, b.reshape({-1})};
  };
  const Tensor x = torch::randn({4, 3});
  const int64_t kernels[] = {stand_in_counters(0).kernels, stand_in_counters(1).kernels};
  const std::vector<Tensor> results = function("moves", body)(x);
  const std::vector<Tensor> expected = body(x);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(results[i].is_cpu());
    EXPECT_TRUE(torch::equal(results[i], expected[i]));
  }
  for (int device : {0, 1}) EXPECT_GT(stand_in_counters(device).kernels, kernels[device]);
}

// A training step of a net, as a function of one batch for each replica.
struct TrainingStep {
  explicit TrainingStep(const Strategy& strategy)
      : strategy(strategy), optimizer(Sgd({.lr = 0.01}).bind(track(strategy.distribute(net)))) {}

  Tensor operator()(const PerReplica<Tensor>& x) { return step(x); }
  std::function<void()> on(int64_t rows) {
    const PerReplica<Tensor> x(
        std::vector<Tensor>(strategy.num_replicas_in_sync(), torch::randn({rows, 16})));
    (*this)(x);  // captures
    return [this, x] { (*this)(x); };
  }

  Strategy strategy;
  nn::Sequential net{nn::Linear(16, 16), nn::Tanh(), nn::Linear(16, 16), nn::Tanh(),
                     nn::Linear(16, 16), nn::Tanh(), nn::Linear(16, 16), nn::Tanh(),
                     nn::Linear(16, 16), nn::Tanh(), nn::Linear(16, 1)};
  Optimizer optimizer;
  Function<Tensor(const PerReplica<Tensor>&)> step =
      function("step", [this](const PerReplica<Tensor>& x) {
        return strategy.reduce(ReduceOp::kSum, strategy.run(
                                                   [&](const Tensor& mine) {
                                                     const Tensor loss =
                                                         net->forward(mine).square().mean();
                                                     optimizer.minimize(loss);
                                                     return loss.detach();
                                                   },
                                                   x));
      });
};

// The host queues the whole step and waits once, for the loss.
TEST_F(AcceleratedStepTest, AStepWaitsForTheDeviceOnce) {
  TrainingStep step(MirroredStrategy({.devices = {"/gpu:0"}}));
  const auto run = step.on(8);
  EXPECT_EQ(synchronizations_of(run), 1);
  const double time = slow_milliseconds(run), busy = busy_milliseconds(run);
  std::cout << "one device: " << time << " ms, of which kernels took " << busy << " ms\n";
  EXPECT_LE(time, 1.1 * busy);
}

TEST_F(AcceleratedStepTest, TwoDevicesRunAtTheSameTime) {
  TrainingStep one(MirroredStrategy({.devices = {"/gpu:0"}}));
  TrainingStep two(MirroredStrategy({.devices = {"/gpu:0", "/gpu:1"}}));
  const double alone = slow_milliseconds(one.on(8)), both = slow_milliseconds(two.on(8));
  std::cout << "one replica: " << alone << " ms, two replicas: " << both << " ms\n";
  EXPECT_LE(both, 1.2 * alone);
}

}  // namespace
}  // namespace trireme
