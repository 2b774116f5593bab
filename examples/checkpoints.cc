// A training that continues from its newest checkpoint when the program is started again.
// docs/checkpoints.md explains it; README.md shows its output.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <csignal>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

namespace tr = trireme;
using torch::Tensor;

int main(int argc, char** argv) try {
  const tr::Flags flags(argc, argv,
                        tr::Usage{.about = "Trains, and continues from its newest checkpoint.",
                                  .arguments = "[FOLDER [STEP]]"});
  tr::Cluster me = tr::resolve(flags);
  if (me.is_server()) return tr::Server(me).join();
  std::optional<tr::InProcessCluster> local;  // without a cluster: a small one in this process
  if (me.is_local())
    me.spec = local.emplace(tr::InProcessClusterOptions{.workers = 1, .ps = 2}).spec();
  const std::vector<std::string>& rest = flags.rest();
  const std::string folder = rest.empty() ? "checkpoints" : rest[0];
  const int64_t dies_after = rest.size() > 1 ? std::stoi(rest[1]) : -1;  // as if it were lost

  tr::ParameterServerStrategy strategy(me);
  torch::manual_seed(1);
  auto net = strategy.distribute<torch::nn::Linear>(2, 1);
  tr::Adam optimizer(net, {.lr = 0.05});
  tr::ClusterCoordinator coordinator(strategy);

  const Tensor x = torch::linspace(-1, 1, 128).reshape({64, 2}).cos();
  const Tensor y = x.matmul(torch::tensor({{3.0f}, {-2.0f}})) + 1;
  auto data = coordinator.create_per_worker_dataset(
      tr::Dataset::from_tensors({x, y}).shuffle(64).repeat().batch(10));
  auto step = tr::function("step", [&](tr::Iterator& batches) {
    auto [x, y] = batches.next<2>();
    Tensor loss = torch::mse_loss(net->forward(x), y);
    optimizer.minimize(loss);
    return loss;
  });

  tr::CheckpointManager manager(folder, {net, optimizer, data},
                                {.keep = 2, .every_steps = 20, .save_on_sigterm = true});
  const int64_t done = manager.restore_or_initialize();
  std::printf("%s at step %d\n", done == 0 ? "begins" : "continues", static_cast<int>(done));
  for (int64_t i = done + 1; i <= 80 && !manager.interrupted(); ++i) {
    const Tensor loss = coordinator.fetch(coordinator.schedule(step, data.iterator()));
    if (i % 10 == 0) std::printf("step %d: loss %.4f\n", static_cast<int>(i), loss.item<double>());
    std::fflush(stdout);
    manager.save_if_due(i);
    if (i == dies_after) {
      manager.wait();  // so that it is known which checkpoint is the newest
      std::raise(SIGKILL);
    }
  }
  manager.wait();
  for (const std::string& path : manager.checkpoints()) {
    std::printf("kept: %s\n", path.substr(path.rfind('/') + 1).c_str());
  }
  tr::end_job(me);
} catch (const tr::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
