// A program of the shape that users write: it serves if its task is a server, and otherwise trains
// with the strategy of its cluster. With --scope the model takes the strategy from an open scope.
// Prints how it has trained.
#include <torch/torch.h>

#include <cstdio>
#include <iostream>

#include "trireme/trireme.h"

namespace tr = trireme;

int main(int argc, char** argv) try {
  const tr::Flags flags(argc, argv,
                        tr::Usage{.about = "Trains a line.",
                                  .flags = {{"--scope", "", "make the model in a scope"}}});
  const tr::Cluster me = tr::resolve(flags);
  if (me.is_server()) return tr::Server(me).join();
  const tr::Strategy strategy = tr::make_strategy(me);
  torch::manual_seed(me.task ? me.task->index : 0);  // a worker that trains alone ends elsewhere
  const auto make_model = [&] {
    if (!flags.has("--scope")) return tr::Model(torch::nn::Linear(4, 1), strategy);
    const auto scope = strategy.scope();
    return tr::Model(torch::nn::Linear(4, 1));
  };
  tr::Model model = make_model();
  model.compile({.optimizer = tr::Sgd({.lr = 0.05}), .loss = torch::nn::MSELoss()});
  const torch::Tensor x = torch::arange(256.0f).view({64, 4}).cos();
  model.fit(x, x.sum(1, true), {.batch_size = 16, .epochs = 2, .verbose = tr::Verbose::kSilent});
  torch::nn::Linear local(4, 1);
  model.strategy().pull(model.net(), local);
  std::printf("trained as %s with %d replicas%s, weight %.6f\n", model.strategy().name().c_str(),
              model.strategy().num_replicas_in_sync(), me.is_chief() ? ", chief" : "",
              local->weight[0][0].item<double>());
  tr::end_job(me);
} catch (const tr::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
