// Trains a small net as one of several workers, for bench/compare:
//
//   trireme launch --workers 2 --mirrored -- launched_bench EPOCHS
//
// Does not set the number of threads, so that its environment decides. Worker 0 prints a JSON
// object: the steps of the epochs after the first, and their seconds.
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>

#include "trireme/trireme.h"

namespace trireme::bench {
namespace {

namespace nn = torch::nn;

constexpr int kExamples = 4096;
constexpr int kBatch = 128;

int run(int epochs) {
  const Cluster me = TfConfigResolver();
  MultiWorkerMirroredStrategy strategy(me);
  Model model(nn::Sequential(nn::Linear(784, 64), nn::ReLU(), nn::Linear(64, 10)), strategy);
  model.compile({.optimizer = Adam({.lr = 1e-3}), .loss = nn::CrossEntropyLoss()});
  torch::manual_seed(1);  // all workers make the same data
  const torch::Tensor x = torch::rand({kExamples, 784});
  const torch::Tensor y = torch::randint(10, {kExamples}, torch::kLong);
  const auto fit = [&](int count) {
    model.fit(x, y, {.batch_size = kBatch, .epochs = count, .verbose = Verbose::kSilent});
  };
  fit(1);  // captures the step
  const auto start = std::chrono::steady_clock::now();
  fit(epochs);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (me.is_worker() && me.task->index == 0) {
    std::printf("{\"steps\": %d, \"seconds\": %.6f}\n", epochs * (kExamples / kBatch),
                seconds.count());
  }
  return 0;
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: launched_bench EPOCHS\n");
    return 2;
  }
  try {
    return trireme::bench::run(std::stoi(argv[1]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "launched_bench: %s\n", error.what());
    return 1;
  }
}
