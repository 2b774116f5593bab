// Computes the sum of one to five with closures on workers. The iterator stays in the client
// program, and every closure draws the next number from it. README.md shows its output.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <iostream>

namespace tr = trireme;

int main() {
  tr::InProcessCluster cluster({.workers = 2, .ps = 2});
  tr::ParameterServerStrategy strategy(cluster.resolver());
  tr::ClusterCoordinator coordinator(strategy);
  auto scope = strategy.scope();
  tr::Variable sum("sum", torch::zeros({}, torch::kInt64));
  auto add = tr::function("add", [&](tr::Iterator& numbers) { sum.assign_add(numbers.next()); });

  tr::Iterator numbers = tr::Dataset::range(1, 6).iterator();
  for (int i = 0; i < 5; ++i) coordinator.schedule(add, numbers);
  coordinator.join();
  std::cout << sum.read().item<int64_t>() << '\n';
}
