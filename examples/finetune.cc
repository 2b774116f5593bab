// Fine-tunes a net that was trained with PyTorch on the digits 0 to 4 (pretrain_digits.py): its
// convolutions are loaded and frozen, and a new head learns all ten digits.
//
//   finetune DIGITS.csv WEIGHTS.safetensors
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <cstdio>
#include <iostream>

#include "examples/digits.h"

namespace tr = trireme;
namespace nn = torch::nn;

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::cerr << "usage: finetune DIGITS.csv WEIGHTS.safetensors\n";
    return 2;
  }
  const Digits all = Digits::load(argv[1]);
  const Digits train = all.part(/*test=*/false), test = all.part(/*test=*/true);

  torch::manual_seed(1);
  tr::InProcessCluster cluster({.workers = 2, .ps = 1});
  DigitsNet net;
  for (torch::Tensor& weight : net->features->parameters()) weight.requires_grad_(false);
  tr::Model model(net, tr::ParameterServerStrategy(cluster.resolver()));
  model.load(argv[2], {.patterns = {"features.*"}});  // the file's head knows five digits only
  model.compile({.optimizer = tr::Adam({.lr = 0.005}),
                 .loss = nn::CrossEntropyLoss(),
                 .metrics = {tr::Accuracy()}});
  std::cout << model.summary();

  const tr::EvaluateOptions silent{.verbose = tr::Verbose::kSilent};
  const double before = model.evaluate(test.images, test.labels, silent)["accuracy"];
  model.fit(train.images, train.labels, {.epochs = 10, .verbose = tr::Verbose::kLines});
  const double after = model.evaluate(test.images, test.labels, silent)["accuracy"];
  std::printf("test accuracy %.3f with a new head, %.3f after training it\n", before, after);
  model.save("digits.safetensors");  // PyTorch reads it
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
