// Captured steps on the stand-in accelerator: moves, streams, and what overlaps.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "trireme/capture/device_scope.h"
#include "trireme/distribute/strategy.h"
#include "trireme/exec/current_streams.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
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

TEST_F(AcceleratedStepTest, MovesAViewOfAnInputWithGaps) {
  const auto body = [](const Tensor& x) {
    const Tensor images = x.slice(1, 0, 784).reshape({-1, 28, 28});
    const DeviceScope on("/gpu:0");
    return images * 2;
  };
  const Tensor x = torch::randn({3, 785});
  EXPECT_TRUE(torch::equal(function("images", body)(x), body(x)));
}

TEST_F(AcceleratedStepTest, CentralStorageComputesOnItsOnlyComputeDevice) {
  const CentralStorageStrategy strategy(
      {.compute_devices = {"/gpu:0"}, .parameter_device = "/cpu:0"});
  const auto scope = strategy.scope();
  const Variable w("w", torch::ones({3}));
  const auto step = function("step", [&](const Tensor& x) { return (x * w.read()).exp().sum(); });
  const int64_t before = stand_in_counters(0).kernels;
  step(torch::ones({3}));
  EXPECT_GE(stand_in_counters(0).kernels - before, 3);
}

// Makes variables that are not trained in the scope of a strategy.
std::vector<Variable> variables_of(const Strategy& strategy, int count) {
  const auto scope = strategy.scope();
  std::vector<Variable> variables;
  for (int i = 0; i < count; ++i) {
    variables.emplace_back("w", torch::ones({2, 2}), VariableOptions{.trainable = false});
  }
  return variables;
}

// Returns the copies of a variable on the first devices. Must be called in a captured function.
std::vector<Tensor> copies_of(const Variable& variable, int devices) {
  std::vector<Tensor> copies;
  for (const std::string& device : device_names("gpu", devices)) {
    const DeviceScope on(device);
    copies.push_back(variable.read() * 1);
  }
  return copies;
}

// The moves leave the device one after the other, so the last one comes late.
TEST_F(AcceleratedStepTest, AWriteDoesNotOvertakeAMove) {
  const auto variables = variables_of(MirroredStrategy({.devices = {"/gpu:0"}}), 6);
  const auto step = function("step", [&](const Tensor& x) {
    Tensor sum = x;
    {
      const DeviceScope on("/gpu:1");
      for (const Variable& variable : variables) sum = sum + variable.read();
    }
    variables.back().assign_add(torch::ones({2, 2}));
    return sum;
  });
  set_stand_in_kernel_delay(std::chrono::milliseconds(5));
  EXPECT_TRUE(torch::equal(step(torch::zeros({2, 2})), torch::full({2, 2}, 6.0)));
}

TEST_F(AcceleratedStepTest, AWriteDoesNotOvertakeTheNumbersThatOneDeviceDrew) {
  const auto variables = variables_of(MirroredStrategy({.devices = device_names("gpu", 3)}), 3);
  const auto step = function("step", [&] {
    for (const Variable& variable : variables) variable.read().normal_();
    variables.back().read().mul_(2);
    return copies_of(variables.back(), 3);
  });
  set_stand_in_kernel_delay(std::chrono::milliseconds(5));
  const std::vector<Tensor> copies = step();
  EXPECT_TRUE(torch::equal(copies[1], copies[0]));
  EXPECT_TRUE(torch::equal(copies[2], copies[0]));
}

TEST_F(AcceleratedStepTest, NumbersDrawnThroughAViewReachAllCopies) {
  const Variable w = variables_of(MirroredStrategy({.devices = device_names("gpu", 2)}), 1)[0];
  const auto step = function("step", [&] {
    w.read()[0].uniform_();
    return copies_of(w, 2);
  });
  const std::vector<Tensor> copies = step();
  EXPECT_FALSE(torch::equal(copies[0], torch::ones({2, 2})));
  EXPECT_TRUE(torch::equal(copies[1], copies[0]));
}

TEST_F(AcceleratedStepTest, AViewThatWasMovedSeesALaterWrite) {
  const Variable w = variables_of(MirroredStrategy({.devices = device_names("gpu", 2)}), 1)[0];
  const auto step = function("step", [&] {
    const Tensor row = w.read()[0];
    Tensor twice;
    {
      const DeviceScope on("/cpu:0");
      twice = row * 2;
    }
    w.assign_add(torch::full({2, 2}, 4.0));
    return std::vector<Tensor>{twice, row};
  });
  const std::vector<Tensor> results = step();
  EXPECT_TRUE(torch::equal(results[0], torch::full({2}, 2.0)));
  EXPECT_TRUE(torch::equal(results[1], torch::full({2}, 5.0)));
}

// The replicas run on threads of their own, on which other streams are current.
TEST_F(AcceleratedStepTest, ReplicasUseTheStreamsOfTheCaller) {
  const MirroredStrategy strategy({.devices = device_names("gpu", 2)});
  const Variable w = variables_of(strategy, 1)[0];
  const auto step = function("step", [&] {
    const PerReplica<Tensor> read = strategy.run([&] {
      Tensor late = w.read() * 1;
      for (int i = 0; i < 6; ++i) late = late * 1;
      return late;
    });
    w.assign_add(torch::ones({2, 2}));
    return read;
  });
  const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
  const internal::UseStream first(guard.getStreamFromGlobalPool(gpu(0)));
  const internal::UseStream second(guard.getStreamFromGlobalPool(gpu(1)));
  set_stand_in_kernel_delay(std::chrono::milliseconds(5));
  for (int i = 1; i < 4; ++i) {
    const PerReplica<Tensor> read = step();
    for (int replica : {0, 1}) {
      EXPECT_TRUE(torch::equal(read[replica], torch::full({2, 2}, 1.0 * i))) << read[replica];
    }
  }
}

// A move from page-locked memory may read it later than one from other memory.
TEST_F(AcceleratedStepTest, AStepHasReadItsPinnedInputsWhenItReturns) {
  const Variable w = variables_of(MirroredStrategy({.devices = {"/gpu:0"}}), 1)[0];
  const auto step = function("step", [&](const Tensor& x) { w.assign_add(x * 2); });
  const Tensor x = torch::ones({2, 2}).pin_memory();
  ASSERT_TRUE(x.is_pinned());
  step(x);
  set_stand_in_kernel_delay(std::chrono::milliseconds(5));
  step(x);
  x.fill_(100);
  EXPECT_TRUE(torch::equal(w.read(), torch::full({2, 2}, 5.0))) << w.read();
}

TEST_F(AcceleratedStepTest, LargeResultsLeaveTheDeviceThroughPinnedMemory) {
  const auto body = [](const Tensor& x) {
    const DeviceScope on("/gpu:0");
    return std::vector<Tensor>{(x * 2).t(), (x * 2).slice(1, 0, 100), x.max() * 2};
  };
  const Tensor x = torch::randn({300, 200});
  const std::vector<Tensor> results = function("large", body)(x), expected = body(x);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(torch::equal(results[i], expected[i]));
    EXPECT_EQ(results[i].is_pinned(), i < 2) << i;
  }
  EXPECT_EQ(results[0].strides(), expected[0].strides());
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

// A net whose backward pass takes the indices of pooling, of an embedding and of classes.
struct IndexingNetImpl : nn::Module {
  IndexingNetImpl() {
    register_module("conv", conv);
    register_module("words", words);
    register_module("last", last);
  }
  Tensor forward(const Tensor& images, const Tensor& ids) {
    const Tensor pooled = torch::max_pool2d(torch::relu(conv(images)), 2).flatten(1);
    return last(pooled) + words(ids);
  }
  nn::Conv2d conv{nn::Conv2dOptions(1, 4, 3)};
  nn::Embedding words{7, 5};
  nn::Linear last{36, 5};
};
TORCH_MODULE(IndexingNet);

TEST_F(AcceleratedStepTest, AStepWithIndicesWaitsForTheDeviceOnce) {
  for (int devices : {1, 2}) {
    const MirroredStrategy strategy({.devices = device_names("gpu", devices)});
    IndexingNet net;
    const Optimizer optimizer = Sgd({.lr = 0.01}).bind(track(strategy.distribute(net)));
    const auto in_replica = [&](const Tensor& images, const Tensor& ids) {
      const Tensor loss = torch::cross_entropy_loss(net(images, ids), ids);
      optimizer.minimize(loss);
      return loss.detach();
    };
    const auto step =
        function("step", [&](const PerReplica<Tensor>& x, const PerReplica<Tensor>& ids) {
          return strategy.reduce(ReduceOp::kSum, strategy.run(in_replica, x, ids));
        });
    const PerReplica<Tensor> x(std::vector<Tensor>(devices, torch::randn({3, 1, 8, 8})));
    const PerReplica<Tensor> ids(std::vector<Tensor>(devices, torch::tensor({0, 4, 2})));
    step(x, ids);  // captures
    EXPECT_EQ(synchronizations_of([&] { step(x, ids); }), 1) << devices << " devices";
  }
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
