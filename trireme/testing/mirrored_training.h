#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <memory>
#include <mutex>
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

// Every kind of pooling.
struct PoolingNetImpl : torch::nn::Module {
  PoolingNetImpl() {
    register_module("first", first);
    register_module("last", last);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(first(x.reshape({-1, 2, 8, 8}))), 2, 2, 1);
    x = torch::adaptive_avg_pool2d(torch::avg_pool2d(x, 2, 1), {3, 2});
    return last(x.flatten(1));
  }
  torch::nn::Conv2d first{torch::nn::Conv2dOptions(2, 6, 3).padding(1)};
  torch::nn::Linear last{36, 3};
};
TORCH_MODULE(PoolingNet);

// A convolution with batch norm and pooling.
struct BatchNormNetImpl : torch::nn::Module {
  BatchNormNetImpl() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("last", last);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(norm(first(x.reshape({-1, 2, 8, 8}))));
    return last(torch::max_pool2d(x, 4).flatten(1));
  }
  torch::nn::Conv2d first{torch::nn::Conv2dOptions(2, 6, 3).padding(1)};
  torch::nn::BatchNorm2d norm{6};
  torch::nn::Linear last{24, 3};
};
TORCH_MODULE(BatchNormNet);

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
  // Several threads may train at the same time, as workers of one group.
  static std::mutex one_at_a_time;
  std::unique_lock lock(one_at_a_time);
  torch::manual_seed(1);
  const torch::Tensor x = torch::randn({103, 128}, dtype), y = torch::randn({103, 3}, dtype);
  Net net, local;
  net->to(dtype);
  local->to(dtype);
  lock.unlock();
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

// Trains a net for three epochs on `rows` examples, in batches of `batch_size`, whose last one may
// be smaller. Returns its parameters, its buffers and the losses of the epochs.
template <typename Net>
std::vector<torch::Tensor> train_on_rows(const Strategy& strategy, int64_t rows,
                                         int64_t batch_size) {
  // Several threads may train at the same time, as workers of one group.
  static std::mutex one_at_a_time;
  std::unique_lock lock(one_at_a_time);
  torch::manual_seed(2);
  const torch::Tensor x = torch::randn({rows, 128}, torch::kDouble),
                      y = torch::randn({rows, 3}, torch::kDouble);
  Net net, local;
  net->to(torch::kDouble);
  local->to(torch::kDouble);
  lock.unlock();
  Model model(net, strategy);
  model.compile({.optimizer = Adam({.lr = 0.01}), .loss = torch::nn::MSELoss()});
  const History history = model.fit(
      x, y, {.batch_size = batch_size, .epochs = 3, .shuffle = false, .verbose = Verbose::kSilent});
  strategy.pull(model.net(), local);
  std::vector<torch::Tensor> trained = local->parameters();
  for (const torch::Tensor& buffer : local->buffers()) trained.push_back(buffer);
  trained.push_back(torch::tensor(history["loss"], torch::kDouble));
  return trained;
}

// Returns the largest distance of a tensor from the one that is expected; infinite if their numbers
// differ.
inline double largest_distance(const std::vector<torch::Tensor>& trained,
                               const std::vector<torch::Tensor>& expected) {
  EXPECT_EQ(trained.size(), expected.size());
  if (trained.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, relative_distance(trained[i], expected[i]));
  }
  return largest;
}

// Returns the largest distance of a tensor that a strategy trained from that of one process.
template <typename Net>
double distance_from_one_process(const Strategy& strategy, torch::Dtype dtype = torch::kDouble) {
  const std::vector<torch::Tensor> expected = train_for_50_steps<Net>(Strategy(), dtype);
  return largest_distance(train_for_50_steps<Net>(strategy, dtype), expected);
}

// Returns `count` devices of a type: "/cpu:0", "/cpu:1" and so on.
inline std::vector<std::string> device_names(const std::string& type, int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back("/" + type + ":" + std::to_string(i));
  return names;
}

}  // namespace trireme
