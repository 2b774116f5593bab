// Trains on several devices of this machine, by default on two logical CPUs. The parameters are on
// one device, the CPU. Each replica reads them there, and the sum of the gradients changes them.
//
//   central_storage [--devices gpu:0,gpu:1]
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <cstdio>
#include <iostream>

#include "examples/devices_flag.h"

namespace tr = trireme;
namespace nn = torch::nn;

// Returns points, and the quarter of the plane in which each of them lies.
std::pair<torch::Tensor, torch::Tensor> points(int64_t count) {
  const torch::Tensor x = torch::rand({count, 2}) * 2 - 1;
  const torch::Tensor positive = (x > 0).to(torch::kInt64);
  return {x, positive.select(1, 0) * 2 + positive.select(1, 1)};
}

int main(int argc, char** argv) try {
  const tr::Flags flags(
      argc, argv,
      tr::Usage{
          .about = "Trains on several devices of this machine, with the parameters on one of them.",
          .flags = {kDevicesFlag}});
  const tr::Strategy strategy = tr::make_strategy(
      tr::resolve(flags), "central_storage",
      {.central_storage = {.compute_devices = devices_of(flags), .parameter_device = "/cpu:0"}});
  torch::manual_seed(1);
  tr::Model model(nn::Sequential{nn::Linear(2, 32), nn::ReLU(), nn::Linear(32, 4)}, strategy);
  std::cout << model.summary();
  model.compile({.optimizer = tr::Adam({.lr = 0.02}),
                 .loss = nn::CrossEntropyLoss(),
                 .metrics = {tr::Accuracy()}});
  auto [x, y] = points(4096);
  model.fit(x, y, {.batch_size = 128, .epochs = 5, .verbose = tr::Verbose::kLines});
  auto [x_test, y_test] = points(1000);
  const tr::Logs logs = model.evaluate(x_test, y_test, {.verbose = tr::Verbose::kSilent});
  std::printf("test accuracy %.3f\n", logs["accuracy"]);
} catch (const tr::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
