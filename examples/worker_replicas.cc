// Trains with two synchronous replicas on each of two workers. The workers are asynchronous to each
// other. docs/strategies.md shows the output.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <cstdio>

namespace tr = trireme;

int main() {
  tr::InProcessCluster cluster({.workers = 2, .ps = 2});
  tr::ParameterServerStrategy strategy(cluster.resolver(), {.replicas = 2});
  auto net = strategy.distribute<torch::nn::Linear>(1, 1);
  auto scope = strategy.scope();
  tr::Sgd optimizer(net, {.lr = 0.1});
  tr::Variable examples("examples", torch::zeros({}, torch::kInt64),
                        {.aggregation = tr::Aggregation::kSum});
  tr::ClusterCoordinator coordinator(strategy);

  auto step = tr::function("train", [&](tr::Iterator& batches) {
    tr::PerReplica<torch::Tensor> losses = strategy.run(
        [&](tr::Iterator& mine) {
          auto [x, y] = mine.next<2>();  // each replica draws the next batch
          torch::Tensor loss =
              torch::mse_loss(net->forward(x), y) / strategy.num_replicas_in_sync();
          optimizer.minimize(loss);  // applies the sum of the gradients of all replicas
          examples.assign_add(torch::full({}, x.size(0), torch::kInt64));
          return loss;
        },
        batches);
    return strategy.reduce(tr::ReduceOp::kSum, losses);
  });

  torch::Tensor x = torch::linspace(-1, 1, 400).unsqueeze(1);
  tr::Iterator batches =
      tr::Dataset::from_tensors({x, 3 * x - 1}).shuffle(400).repeat().batch(20).iterator();
  tr::RemoteValue loss;
  for (int i = 0; i < 300; ++i) loss = coordinator.schedule(step, batches);
  coordinator.join();
  std::printf("y = %.2f x + %.2f, loss %.4f, %ld examples seen\n",
              tr::track(net)[0].read().item<float>(), tr::track(net)[1].read().item<float>(),
              coordinator.fetch(loss).item<float>(),
              static_cast<long>(examples.read().item<int64_t>()));
}
