// Fine-tunes a net that was trained with PyTorch on the digits 0 to 4 (pretrain_digits.py): its
// convolutions are loaded and frozen, and a new head learns all ten digits.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <cstdio>
#include <iostream>
#include <optional>

#include "examples/digits.h"

namespace tr = trireme;
namespace nn = torch::nn;

int main(int argc, char** argv) try {
  const tr::Flags flags(argc, argv,
                        tr::Usage{.about = "Fine-tunes a net that was trained with PyTorch.",
                                  .arguments = "DIGITS.csv WEIGHTS.safetensors"});
  tr::Cluster me = tr::resolve(flags);
  if (me.is_server()) return tr::Server(me).join();
  std::optional<tr::InProcessCluster> local;  // without a cluster: a small one in this process
  if (me.is_local())
    me.spec = local.emplace(tr::InProcessClusterOptions{.workers = 2, .ps = 1}).spec();
  if (flags.rest().size() != 2) {
    std::cerr << flags.help();
    return 2;
  }
  const Digits all = Digits::load(flags.rest()[0]);
  const Digits train = all.part(/*test=*/false), test = all.part(/*test=*/true);

  torch::manual_seed(1);
  DigitsNet net;
  for (torch::Tensor& weight : net->features->parameters()) weight.requires_grad_(false);
  tr::Model model(net, tr::ParameterServerStrategy(me));
  model.load(flags.rest()[1],
             {.patterns = {"features.*"}});  // the file's head knows five digits only
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
  tr::end_job(me);
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
