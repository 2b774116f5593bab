// Schedules functions on two workers, with variables on two parameter servers. One worker is
// stopped in between. docs/coordinator.md shows its output.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <iostream>
#include <vector>

namespace tr = trireme;
using torch::Tensor;

int main(int argc, char** argv) try {
  tr::Flags(argc, argv, tr::Usage{.about = "Schedules functions on workers in this process."});
  tr::InProcessCluster cluster({.workers = 2, .ps = 2});
  tr::ParameterServerStrategy strategy(cluster.resolver());
  auto scope = strategy.scope();
  tr::Variable sum("sum", torch::zeros({}, torch::kInt64));
  tr::Variable count("count", torch::zeros({}, torch::kInt64));
  tr::ClusterCoordinator coordinator(strategy);

  auto add = tr::function("add", [&](const Tensor& number) {
    sum.assign_add(number);
    return number * number;
  });
  std::vector<tr::RemoteValue<>> squares;
  for (int64_t i = 1; i <= 5; ++i) squares.push_back(coordinator.schedule(add, torch::tensor(i)));
  coordinator.join();
  std::cout << "The sum of one to five is " << sum.read().item<int64_t>() << ", their squares are";
  for (const Tensor& square : coordinator.fetch(squares)) {
    std::cout << ' ' << square.item<int64_t>();
  }
  std::cout << ".\n";

  auto tick = tr::function("tick", [&] { count.assign_add(torch::ones({}, torch::kInt64)); });
  for (int i = 0; i < 1000; ++i) {
    if (i == 500) cluster.stop({"worker", 1});
    coordinator.schedule(tick);
  }
  coordinator.join();
  std::cout << "A worker was stopped, and 1000 closures counted to " << count.read().item<int64_t>()
            << ".\n";

  auto find = tr::function(
      "find", [](const Tensor& ids) { return torch::arange(10).index_select(0, ids); });
  coordinator.fetch(coordinator.schedule(find, torch::tensor({7})));
  coordinator.schedule(find, torch::tensor({70}));
  try {
    coordinator.join();
  } catch (const tr::Error& error) {
    std::cout << error.what() << '\n';
  }
} catch (const tr::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
