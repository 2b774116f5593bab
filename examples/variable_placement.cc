// Places variables on tasks and shares them among clients, one per worker. The chief initializes
// the variables, and the others wait until it has. README.md shows the output.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <chrono>
#include <future>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "examples/example_cluster.h"

namespace tr = trireme;
using torch::Tensor;

constexpr int kClients = 2, kSteps = 10;

tr::Variable make_variable(const std::string& name, const Tensor& initial,
                           const std::string& device) {
  tr::DeviceScope on(device);
  return tr::Variable(name, initial);
}

std::string described(const tr::Variable& v) {
  return v.name() + " is " + (v.device().empty() ? "in the program" : "on " + v.device());
}

int main(int argc, char** argv) try {
  const tr::Flags flags(
      argc, argv,
      tr::Usage{.about = "Places variables on tasks and shares them among clients, one per worker.",
                .flags = {ExampleCluster::flag()}});
  ExampleCluster cluster(flags);
  if (cluster.is_server()) return tr::Server(cluster.me()).join();
  const tr::Variable weight = make_variable("weight", torch::zeros({3}), "/job:ps/task:0");
  const tr::Variable finished = make_variable("finished", torch::tensor(0), "/job:ps/task:1");
  const tr::Variable local("local", torch::tensor(7));
  for (const auto& v : {weight, finished, local}) std::cout << described(v) << "\n";

  auto step = tr::function("step", [&](const Tensor& delta) { weight.assign_add(delta); });
  auto finish = tr::function("finish", [&] { finished.assign_add(torch::tensor(1)); });
  auto count = tr::function("count", [&] { return finished.read(); });
  auto read = tr::function("read", [&] { return weight.read(); });

  // In a real job each client is a separate program on its worker's machine.
  const auto client = [&](int index) {
    const bool chief = index == 0;
    tr::Session session(cluster.target(index),
                        {.container = "job", .initializes = chief, .certs = cluster.me().certs});
    for (int i = 0; i < kSteps; ++i) session.run(step, torch::full({3}, index + 1.0f));
    session.run(finish);
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (session.run(count).item<int64_t>() < kClients) {
      if (std::chrono::steady_clock::now() > limit) throw std::runtime_error("a client is missing");
    }
    std::ostringstream report;
    report << "client " << index << (chief ? ", the chief, " : " ") << "on " << session.master()
           << ": after all steps weight is " << session.run(read)[0].item<float>() << "\n";
    return report.str();
  };
  // The chief starts last; the other clients wait for it.
  std::vector<std::future<std::string>> reports(kClients);
  for (int i = kClients - 1; i >= 0; --i) {
    reports[i] = std::async(std::launch::async, client, i);
  }
  for (auto& report : reports) std::cout << report.get();

  // A session without a container has its own copies of the variables, with the program's values.
  tr::Session own(cluster.target(), cluster.options());
  std::cout << "in a session of its own weight is " << own.run(read)[0].item<float>() << "\n\n";
  std::cout << own.graph(tr::function("sum", [&] { return weight.read().sum() + local.read(); }))
                   .explain();
  tr::end_job(cluster.me());
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
