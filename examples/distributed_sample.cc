// Computes the sum of one to five with closures on workers. The iterator stays in the client
// program, and every closure draws the next number from it. README.md shows its output.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <iostream>
#include <optional>

namespace tr = trireme;

int main(int argc, char** argv) try {
  const tr::Flags flags(argc, argv, tr::Usage{.about = "Adds one to five on the workers."});
  tr::Cluster me = tr::resolve(flags);
  if (me.is_server()) return tr::Server(me).join();
  std::optional<tr::InProcessCluster> local;  // without a cluster: a small one in this process
  if (me.is_local())
    me.spec = local.emplace(tr::InProcessClusterOptions{.workers = 2, .ps = 2}).spec();
  tr::ParameterServerStrategy strategy(me);
  tr::ClusterCoordinator coordinator(strategy);
  auto scope = strategy.scope();
  tr::Variable sum("sum", torch::zeros({}, torch::kInt64));
  auto add = tr::function("add", [&](tr::Iterator& numbers) { sum.assign_add(numbers.next()); });

  tr::Iterator numbers = tr::Dataset::range(1, 6).iterator();
  for (int i = 0; i < 5; ++i) coordinator.schedule(add, numbers);
  coordinator.join();
  std::cout << sum.read().item<int64_t>() << '\n';
  tr::end_job(me);
} catch (const tr::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
