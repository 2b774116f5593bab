#pragma once

#include <torch/torch.h>

#include <string>

#include "examples/digits.h"
#include "trireme/function/function.h"
#include "trireme/optim/optimizer.h"

// Handwritten digits, 8 x 8 pixels each, and a net that classifies them.
namespace trireme {

struct Digits {
  torch::Tensor images, labels;  // float32[n, 64] from 0 to 1; int64[n]

  // Reads a file as the examples do.
  static Digits load(const std::string& path) {
    const ::Digits digits = ::Digits::load(path);
    return {digits.images.flatten(1), digits.labels};
  }

  // Returns every `step`-th digit, beginning with `first`.
  Digits part(int64_t first, int64_t step) const {
    return {images.slice(0, first, std::nullopt, step).contiguous(),
            labels.slice(0, first, std::nullopt, step).contiguous()};
  }
};

struct DigitsNetImpl : torch::nn::Module {
  DigitsNetImpl() {
    first = register_module("first", torch::nn::Linear(64, 64));
    second = register_module("second", torch::nn::Linear(64, 10));
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::relu(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(DigitsNet);

// Trains the net on the digits in batches, in another random order each epoch.
inline void train_digits(DigitsNet net, const Optimizer& optimizer, const Digits& digits,
                         int epochs) {
  constexpr int64_t kBatch = 32;
  const auto step = function("train", [&](const torch::Tensor& x, const torch::Tensor& y) {
    const torch::Tensor loss = torch::cross_entropy_loss(net->forward(x), y);
    optimizer.minimize(loss);
    return loss;
  });
  const int64_t count = digits.labels.size(0);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    const torch::Tensor order = torch::randperm(count);
    for (int64_t i = 0; i + kBatch <= count; i += kBatch) {
      const torch::Tensor batch = order.narrow(0, i, kBatch);
      step(digits.images.index_select(0, batch), digits.labels.index_select(0, batch));
    }
  }
}

}  // namespace trireme
