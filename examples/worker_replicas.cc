// Trains with two synchronous replicas on each of two workers. The workers are asynchronous to each
// other. docs/strategies.md shows the output.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <cstdio>
#include <iostream>
#include <optional>

namespace tr = trireme;

int main(int argc, char** argv) try {
  const tr::Flags flags(argc, argv,
                        tr::Usage{.about = "Trains with two replicas on each of two workers."});
  tr::Cluster me = tr::resolve(flags);
  if (me.is_server()) return tr::Server(me).join();
  std::optional<tr::InProcessCluster> local;  // without a cluster: a small one in this process
  if (me.is_local())
    me.spec = local.emplace(tr::InProcessClusterOptions{.workers = 2, .ps = 2}).spec();
  tr::ParameterServerStrategy strategy(me, {.replicas = 2});
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
  tr::end_job(me);
} catch (const tr::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
