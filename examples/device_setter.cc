// Places variables on the parameter servers in turn, and everything else on the workers. README.md
// shows its output.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <iostream>
#include <vector>

#include "examples/example_cluster.h"

namespace tr = trireme;
using torch::Tensor;

int main(int argc, char** argv) try {
  const tr::Flags flags(argc, argv,
                        tr::Usage{.about = "Places variables on the parameter servers in turn.",
                                  .flags = {ExampleCluster::flag()}});
  ExampleCluster cluster(flags);
  if (cluster.is_server()) return tr::Server(cluster.me()).join();
  tr::DeviceScope setter(tr::replica_device_setter({.ps_tasks = 2}));

  std::vector<tr::Variable> v;
  for (int i = 1; i <= 5; ++i) {
    v.emplace_back("v" + std::to_string(i), torch::tensor(static_cast<float>(i)));
    std::cout << v.back().name() << " is on " << v.back().device() << "\n";
  }

  auto sums = tr::function("sums", [&] {
    Tensor s = v[0].read() + v[1].read();  // "/job:worker", which means its task 0
    tr::DeviceScope gpu("/gpu:1");
    Tensor t = s + v[2].read();  // "/job:worker/gpu:1"
    tr::DeviceScope task("/task:1");
    Tensor u = t + v[3].read();  // "/job:worker/task:1/gpu:1"
    return std::vector<Tensor>{s, t, u};
  });
  tr::Session session(cluster.target(), cluster.options());
  for (const Tensor& sum : session.run(sums)) std::cout << sum.item<float>() << "\n";
  std::cout << "\n" << session.graph(sums).explain();

  // Place by bytes instead of in turn: the large variable gets one server, the small ones share the
  // other.
  tr::DeviceScope balanced(tr::replica_device_setter({.ps_tasks = 2, .balance_bytes = true}));
  std::cout << "\n";
  for (int64_t size : {1000, 10, 20, 30}) {
    tr::Variable w("w" + std::to_string(size), torch::zeros({size}));
    std::cout << w.name() << " is on " << w.device() << "\n";
  }
  tr::end_job(cluster.me());
} catch (const tr::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
