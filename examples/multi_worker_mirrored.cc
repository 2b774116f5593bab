// Trains on several machines, synchronously. Every worker runs this program on its part of each
// batch, and all of them make the same update.
//
// The workers are those of TF_CONFIG, torchrun, Slurm or --cluster FILE.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <cstdio>
#include <iostream>

namespace tr = trireme;
namespace nn = torch::nn;

// Returns points, and 1 for each one inside of a circle.
std::pair<torch::Tensor, torch::Tensor> points(int64_t count) {
  torch::Tensor x = torch::rand({count, 2}) * 2 - 1;
  return {x, (x.square().sum(1, true) < 0.5).to(torch::kFloat)};
}

int main(int argc, char** argv) try {
  const tr::Flags flags(argc, argv, tr::Usage{.about = "Trains on several workers together."});
  const tr::Cluster me = tr::resolve(flags);     // the cluster, and which worker this process is
  tr::MultiWorkerMirroredStrategy strategy(me);  // waits for the others
  torch::manual_seed(1);                         // all workers make the same data
  tr::Model model(nn::Sequential{nn::Linear(2, 32), nn::ReLU(), nn::Linear(32, 1)}, strategy);
  model.compile({.optimizer = tr::Adam({.lr = 0.03}),
                 .loss = nn::BCEWithLogitsLoss(),
                 .metrics = {tr::Accuracy({.threshold = 0})}});
  auto [x, y] = points(4096);
  const tr::History history = model.fit(x, y, {.batch_size = 128, .epochs = 5});  // of all workers
  if (!me.is_chief()) return 0;
  std::printf("%d replicas, final loss %.3f\n", strategy.num_replicas_in_sync(),
              history["loss"].back());
} catch (const tr::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
