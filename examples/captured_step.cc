// A training step written with torch:: calls, captured once and replayed. docs/functions.md
// explains it and shows its output.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <cstdio>
#include <iostream>

namespace tr = trireme;
using torch::Tensor;

int main(int argc, char** argv) try {
  tr::Flags(argc, argv, tr::Usage{.about = "Captures a training step once and replays it."});
  torch::manual_seed(1);
  torch::nn::Linear net(1, 1);
  tr::Sgd optimizer(net, {.lr = 0.1});

  auto step = tr::function("step", [&](const Tensor& x, const Tensor& y) {
    Tensor loss = torch::mse_loss(net->forward(x), y);
    optimizer.minimize(loss);
    return loss;
  });
  const Tensor x = torch::linspace(-1, 1, 32).unsqueeze(1), y = 3 * x - 1;
  for (int i = 0; i < 100; ++i) step(x, y);
  std::printf("captured %d time(s), ran %d steps\n", step.captures(),
              static_cast<int>(step.step()));
  std::printf("y = %.2f x + %.2f\n", net->weight.item<double>(), net->bias.item<double>());

  // Another shape needs another graph. A new learning rate does not, because the rate is a tensor.
  step(x.slice(0, 0, 16), y.slice(0, 0, 16));
  optimizer.set_lr(0.01);
  step(x, y);
  std::printf("captured %d time(s)\n", step.captures());

  // State that changes from step to step must be a variable. A C++ counter would be captured as a
  // constant.
  tr::Variable calls("calls", torch::zeros({}, torch::kLong), {.trainable = false});
  auto scale = tr::function("scale", [&](const Tensor& x) {
    calls.assign_add(torch::ones({}, torch::kLong));
    return x * calls;
  });
  for (int i = 0; i < 3; ++i) scale(torch::ones({2}));
  std::printf("called %d times\n\n", static_cast<int>(calls.read().item<int64_t>()));
  std::cout << scale.graph(torch::ones({2})).explain() << "\n";

  // The capture rejects a branch on a tensor's value, which would be right for one step only.
  auto careless =
      tr::function("careless", [&](const Tensor& x) { return x.sum().item<float>() > 0 ? x : -x; });
  try {
    careless(torch::ones({2}));
  } catch (const tr::Error& error) {
    std::printf("%s\n", error.what());
  }
} catch (const tr::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
