// Trains on several devices of this machine, by default on two logical CPUs. Each device has a copy
// of the net and computes on its part of each batch, and all copies change in the same way.
//
//   mirrored [--devices gpu:0,gpu:1]
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <cstdio>
#include <iostream>

#include "examples/devices_flag.h"

namespace tr = trireme;
namespace nn = torch::nn;

// Returns points, and 1 for each one inside of a circle.
std::pair<torch::Tensor, torch::Tensor> points(int64_t count) {
  torch::Tensor x = torch::rand({count, 2}) * 2 - 1;
  return {x, (x.square().sum(1, true) < 0.5).to(torch::kFloat)};
}

int main(int argc, char** argv) try {
  const tr::Flags flags(
      argc, argv,
      tr::Usage{
          .about = "Trains on several devices of this machine, by default on two logical CPUs.",
          .flags = {kDevicesFlag}});
  const tr::Strategy strategy = tr::make_strategy(tr::resolve(flags), "mirrored",
                                                  {.mirrored = {.devices = devices_of(flags)}});
  std::printf("%d replicas\n", strategy.num_replicas_in_sync());
  torch::manual_seed(1);
  tr::Model model(nn::Sequential{nn::Linear(2, 32), nn::ReLU(), nn::Linear(32, 1)}, strategy);
  model.compile({.optimizer = tr::Adam({.lr = 0.03}),
                 .loss = nn::BCEWithLogitsLoss(),
                 .metrics = {tr::Accuracy({.threshold = 0})}});
  auto [x, y] = points(4096);
  auto [x_test, y_test] = points(1000);
  model.fit(x, y,
            {.batch_size = 128,  // of all replicas together
             .epochs = 5,
             .validation = std::make_pair(x_test, y_test),
             .verbose = tr::Verbose::kLines});
  const torch::Tensor answers = model.predict(torch::tensor({{0.1f, 0.2f}, {0.9f, -0.8f}})) > 0;
  std::printf("(0.1, 0.2) is %s, (0.9, -0.8) is %s\n",
              answers[0].item<bool>() ? "inside" : "outside",
              answers[1].item<bool>() ? "inside" : "outside");
} catch (const tr::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
