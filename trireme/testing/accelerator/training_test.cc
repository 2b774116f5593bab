#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "trireme/base/sanitizer.h"
#include "trireme/testing/accelerator/device_stream.h"
#include "trireme/testing/accelerator/stand_in_fixture.h"
#include "trireme/testing/slowdown.h"

namespace trireme {
namespace {

using torch::Tensor;
namespace nn = torch::nn;

using StandInTraining = StandInAccelerator;

// Moves the parameters and buffers of a module. Module::to() cannot, since LibTorch does not let
// set_data() change a tensor's device to one of PrivateUse1.
void move_module(nn::Module& module, c10::Device device) {
  const auto move = [&](Tensor tensor) {
    const Tensor moved = tensor.detach().to(device);
    tensor.unsafeGetTensorImpl()->shallow_copy_from(moved.getIntrusivePtr());
  };
  for (const Tensor& parameter : module.parameters()) move(parameter);
  for (const Tensor& buffer : module.buffers()) move(buffer);
}

template <typename Optimizer>
std::unique_ptr<torch::optim::Optimizer> make_optimizer(nn::Sequential& net) {
  return std::make_unique<Optimizer>(net->parameters(), 0.01);
}
using MakeOptimizer = decltype(&make_optimizer<torch::optim::SGD>);

// Trains a copy of the net for a few steps on the device and returns its parameters and buffers.
std::vector<Tensor> train(const nn::Sequential& net, const Tensor& inputs, const Tensor& targets,
                          c10::Device device, MakeOptimizer make_optimizer) {
  nn::Sequential copy(std::dynamic_pointer_cast<nn::SequentialImpl>(net->clone()));
  if (device != c10::kCPU) move_module(*copy, device);
  const auto optimizer = make_optimizer(copy);
  const Tensor x = inputs.to(device);
  const Tensor y = targets.to(device);
  EXPECT_EQ(synchronizations_of([&] {
              for (int step = 0; step < 3; ++step) {
                optimizer->zero_grad();
                torch::cross_entropy_loss(copy->forward(x).flatten(1), y).backward();
                optimizer->step();
              }
            }),
            0);
  std::vector<Tensor> state = copy->parameters();
  for (const Tensor& buffer : copy->buffers()) state.push_back(buffer);
  return state;
}

void expect_training_as_on_cpu(nn::Sequential net, const Tensor& inputs, const Tensor& targets,
                               MakeOptimizer make_optimizer) {
  net->to(torch::kDouble);
  const auto expected = train(net, inputs, targets, c10::kCPU, make_optimizer);
  const auto trained = train(net, inputs, targets, gpu(1), make_optimizer);
  ASSERT_EQ(trained.size(), expected.size());
  for (size_t i = 0; i < trained.size(); ++i) {
    EXPECT_EQ(trained[i].device(), gpu(1));
    EXPECT_LE(largest_difference(trained[i], expected[i]), 1e-12) << "tensor " << i;
  }
}

nn::Sequential conv_net() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), nn::BatchNorm2d(8),
                        nn::ReLU(), nn::MaxPool2d(2), nn::Conv2d(nn::Conv2dOptions(8, 4, 3)),
                        nn::ReLU(), nn::Flatten(), nn::Linear(16, 5));
}

TEST_F(StandInTraining, TrainsAConvolutionalNetAsTheCpuDoes) {
  torch::manual_seed(1);
  const Tensor images = torch::randn({6, 3, 8, 8}, torch::kDouble);
  const Tensor labels = torch::randint(0, 5, {6});
  expect_training_as_on_cpu(conv_net(), images, labels, make_optimizer<torch::optim::SGD>);
}

TEST_F(StandInTraining, TrainsATransformerLayerAsTheCpuDoes) {
  torch::manual_seed(1);
  nn::Sequential net(nn::Embedding(11, 16),
                     nn::TransformerEncoderLayer(
                         nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0)),
                     nn::Linear(16, 1), nn::Flatten());
  const Tensor tokens = torch::randint(0, 11, {6, 5});
  const Tensor labels = torch::randint(0, 5, {6});
  expect_training_as_on_cpu(net, tokens, labels, make_optimizer<torch::optim::SGD>);
}

TEST_F(StandInTraining, StepsOptimizersWithStateAsTheCpuDoes) {
  torch::manual_seed(1);
  nn::Sequential net(nn::Linear(4, 8), nn::Tanh(), nn::Linear(8, 3));
  const Tensor inputs = torch::randn({6, 4}, torch::kDouble);
  const Tensor labels = torch::randint(0, 3, {6});
  expect_training_as_on_cpu(net, inputs, labels, make_optimizer<torch::optim::Adam>);
  expect_training_as_on_cpu(net, inputs, labels, make_optimizer<torch::optim::RMSprop>);
}

// Trains a net on each device at the same time, with kernels that take a millisecond at least.
// Returns the time of a step in milliseconds, and the number of kernels of a step on a device.
std::pair<double, int64_t> time_of_step(const std::vector<int>& devices) {
  std::vector<std::function<void()>> steps;
  for (int device : devices) {
    nn::Sequential net = conv_net();
    move_module(*net, gpu(device));
    const Tensor images = torch::randn({6, 3, 8, 8}, gpu(device));
    const Tensor labels = torch::zeros({6}, torch::TensorOptions(gpu(device)).dtype(torch::kLong));
    steps.emplace_back([net, images, labels]() mutable {
      torch::cross_entropy_loss(net->forward(images), labels).backward();
      for (const Tensor& parameter : net->parameters()) {
        parameter.data().sub_(parameter.grad(), 0.1);
      }
    });
  }
  const auto run = [&] {
    for (const auto& step : steps) step();
    for (int device : devices) internal::synchronize_device(device);
  };
  set_stand_in_kernel_delay({});
  run();  // Finds the shapes.
  const int64_t before = stand_in_counters(devices[0]).kernels;
  set_stand_in_kernel_delay(std::chrono::milliseconds(1));
  const double time = shortest([&] { return milliseconds_of(run); });
  return {time, (stand_in_counters(devices[0]).kernels - before) / 3};
}

TEST_F(StandInTraining, OverlapsHostAndDevices) {
  const double patience = kSanitized ? 5 : slowdown();
  const auto [one, kernels] = time_of_step({0});
  EXPECT_GE(kernels, 30);
  EXPECT_GE(one, kernels);
  EXPECT_LE(one, 1.1 * kernels * patience);
  EXPECT_LE(time_of_step({0, 1}).first, 1.2 * one * patience);
}

}  // namespace
}  // namespace trireme
