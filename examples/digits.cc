// A convolutional net learns handwritten digits, by default on a cluster in this process: three
// workers, two parameter servers.
#include "examples/digits.h"

#include <torch/torch.h>
#include <trireme/trireme.h>

#include <cstdio>
#include <iostream>
#include <optional>

namespace tr = trireme;
namespace nn = torch::nn;

int main(int argc, char** argv) try {
  const tr::Flags flags(argc, argv,
                        tr::Usage{.about = "A convolutional net learns handwritten digits.",
                                  .arguments = "DIGITS.csv"});
  tr::Cluster me = tr::resolve(flags);
  if (me.is_server()) return tr::Server(me).join();
  if (flags.rest().size() != 1) {
    std::cerr << flags.help();
    return 2;
  }
  const Digits all = Digits::load(flags.rest()[0]);
  const Digits train = all.part(/*test=*/false), test = all.part(/*test=*/true);

  std::optional<tr::InProcessCluster> local;  // without a cluster: a small one in this process
  if (me.is_local() && (me.strategy.empty() || me.strategy == "ps")) {
    me.spec = local.emplace(tr::InProcessClusterOptions{.workers = 3, .ps = 2}).spec();
  }
  torch::manual_seed(1);
  tr::Strategy strategy = tr::make_strategy(me);
  tr::Model model(DigitsNet(), strategy);
  model.compile({.optimizer = tr::Adam({.lr = 0.002}),
                 .loss = nn::CrossEntropyLoss(),
                 .metrics = {tr::Accuracy()},
                 .steps_per_execution = 4});
  model.fit(train.images, train.labels,
            {.epochs = 20,
             .validation = std::make_pair(test.images, test.labels),
             .validation_freq = 5,
             .verbose = tr::Verbose::kLines});
  const tr::Logs logs = model.evaluate(test.images, test.labels, {.verbose = tr::Verbose::kSilent});
  if (me.is_chief()) std::printf("test accuracy %.4f\n", logs["accuracy"]);
  tr::end_job(me);
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
