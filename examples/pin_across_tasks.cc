// Pins operators of one function to tasks of a cluster. README.md shows its output.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <iostream>

#include "examples/example_cluster.h"

namespace tr = trireme;
using torch::Tensor;

int main(int argc, char** argv) try {
  const tr::Flags flags(argc, argv,
                        tr::Usage{.about = "Pins operators of one function to tasks of a cluster.",
                                  .flags = {ExampleCluster::flag()}});
  ExampleCluster cluster(flags);
  if (cluster.is_server()) return tr::Server(cluster.me()).join();
  tr::Session session(cluster.target(), cluster.options());
  std::cout << "The session's master is " << session.master() << ".\n";

  auto add = tr::function("add", [] {
    Tensor a, b;
    {
      tr::DeviceScope on("/job:ps/task:0/cpu:0");
      a = torch::ones({});
    }
    {
      tr::DeviceScope on("/job:worker/task:1/gpu:1");  // without a GPU, a CPU is used
      b = a + 2;
    }
    return a + b;  // not pinned, so it runs on the master
  });
  std::cout << "a + b = " << session.run(add).item<float>() << "\n\n";
  std::cout << session.graph(add).explain();

  try {
    session.run([] {
      tr::DeviceScope on("/job:worker/task:9");
      return torch::ones({});
    });
  } catch (const tr::Error& error) {
    std::cout << "\n" << error.what() << "\n";
  }
  tr::end_job(cluster.me());
} catch (const tr::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
