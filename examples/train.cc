// A net learns which points lie inside of a circle. README.md and docs/tutorial.md show this
// program and what it prints: in one process, on a local cluster, and on two machines.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <cstdio>
#include <iostream>
#include <optional>

namespace tr = trireme;
namespace nn = torch::nn;

int main(int argc, char** argv) try {
  const tr::Flags flags(argc, argv, tr::Usage{.about = "Learns which points are in a circle."});
  tr::Cluster me = tr::resolve(flags);  // the cluster, and which task this process is
  if (me.is_server()) return tr::Server(me).join();

  std::optional<tr::InProcessCluster> local;  // without a cluster: a small one in this process
  if (me.is_local())
    me.spec = local.emplace(tr::InProcessClusterOptions{.workers = 2, .ps = 1}).spec();
  tr::ParameterServerStrategy strategy(me);
  auto net = strategy.distribute<nn::Sequential>(nn::Linear(2, 32), nn::ReLU(), nn::Linear(32, 1));
  auto scope = strategy.scope();  // variables made from here on are on the parameter servers
  tr::Adam optimizer(net, {.lr = 0.01});
  tr::ClusterCoordinator coordinator(strategy);

  auto data = coordinator.create_per_worker_dataset([](const tr::InputContext&) {
    torch::Tensor points = torch::rand({10000, 2}) * 2 - 1;
    torch::Tensor inside = (points.square().sum(1, true) < 0.5).to(torch::kFloat);
    return tr::Dataset::from_tensors({points, inside}).shuffle(10000).repeat().batch(256);
  });
  auto step = tr::function("train", [&](tr::Iterator& batches) {
    auto [points, inside] = batches.next<2>();
    torch::Tensor loss = torch::binary_cross_entropy_with_logits(net->forward(points), inside);
    optimizer.minimize(loss);
    return loss;
  });
  for (int epoch = 1; epoch <= 4; ++epoch) {
    tr::RemoteValue loss;
    for (int i = 0; i < 100; ++i) loss = coordinator.schedule(step, data.iterator());
    coordinator.join();
    std::printf("epoch %d: loss %.3f\n", epoch, coordinator.fetch(loss).item<float>());
  }
  tr::end_job(me);
} catch (const tr::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
