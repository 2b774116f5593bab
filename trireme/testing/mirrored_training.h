#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "trireme/model/model.h"
#include "trireme/testing/relative_distance.h"

// Nets that are trained under strategies for several devices, and compared with the weights of one
// process that trains on whole batches.
namespace trireme {

// Convolutions and pooling, without batch norm, whose statistics depend on the parts of a batch.
struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl() {
    register_module("first", first);
    register_module("second", second);
    register_module("last", last);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(first(x.reshape({-1, 2, 8, 8}))), 2);
    return last(second(x).relu_().flatten(1));
  }
  torch::nn::Conv2d first{torch::nn::Conv2dOptions(2, 6, 3).padding(1)};
  torch::nn::Conv2d second{torch::nn::Conv2dOptions(6, 4, 3)};
  torch::nn::Linear last{16, 3};
};
TORCH_MODULE(ConvNet);

// A transformer layer between two linear layers.
struct TransformerNetImpl : torch::nn::Module {
  TransformerNetImpl() {
    register_module("first", first);
    register_module("layer", layer);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor tokens = first(x.reshape({-1, 8, 16})).transpose(0, 1);
    return last(layer(tokens).mean(0));
  }
  torch::nn::Linear first{16, 12};
  torch::nn::TransformerEncoderLayer layer{
      torch::nn::TransformerEncoderLayerOptions(12, 3).dim_feedforward(20).dropout(0)};
  torch::nn::Linear last{12, 3};
};
TORCH_MODULE(TransformerNet);

// Trains a net for 50 steps: ten epochs of four batches of 21 examples and one of 19. Returns its
// parameters.
template <typename Net>
std::vector<torch::Tensor> train_for_50_steps(const Strategy& strategy, torch::Dtype dtype) {
  torch::manual_seed(1);
  const torch::Tensor x = torch::randn({103, 128}, dtype), y = torch::randn({103, 3}, dtype);
  Net net, local;
  net->to(dtype);
  local->to(dtype);
  Model model(net, strategy);
  model.compile({.optimizer = Adam({.lr = 0.01}), .loss = torch::nn::MSELoss()});
  int64_t steps = 0;
  model.fit(x, y,
            {.batch_size = 21,
             .epochs = 10,
             .shuffle = false,
             .callbacks = {on_epoch_end([&](Fit& fit, const Logs&) { steps = fit.step(); })},
             .verbose = Verbose::kSilent});
  EXPECT_EQ(steps, 50);
  strategy.pull(model.net(), local);
  return local->parameters();
}

// Returns the largest distance of a tensor that a strategy trained from that of one process.
template <typename Net>
double distance_from_one_process(const Strategy& strategy, torch::Dtype dtype = torch::kDouble) {
  const std::vector<torch::Tensor> expected = train_for_50_steps<Net>(Strategy(), dtype);
  const std::vector<torch::Tensor> trained = train_for_50_steps<Net>(strategy, dtype);
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, relative_distance(trained[i], expected[i]));
  }
  return largest;
}

// Returns `count` devices of a type: "/cpu:0", "/cpu:1" and so on.
inline std::vector<std::string> device_names(const std::string& type, int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back("/" + type + ":" + std::to_string(i));
  return names;
}

}  // namespace trireme
