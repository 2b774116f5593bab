// Runs closures on the workers of a cluster, and bare gRPC calls to compare them with.
//
//   coordinator_bench WORKERS PS BARE
//
// The arguments are comma-separated addresses; BARE names two bare servers. Executes each line of
// its input and answers with the line "done":
//
//   closures N      schedules N empty closures and joins
//   update N        schedules N closures that change a variable and joins
//   bare N          makes N bare calls to the two servers, with 64 in flight at each
//   latency N       schedules and fetches N closures one after the other; the workers take turns
//   bare_latency N  makes N blocking bare calls to the two servers in turn
#include <ATen/Parallel.h>
#include <torch/types.h>

#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "bench/anchors/bare_grpc.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/variable.h"

namespace trireme::bench {
namespace {

using torch::Tensor;

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> items;
  std::istringstream stream(list);
  for (std::string item; std::getline(stream, item, ',');) items.push_back(item);
  return items;
}

int run(const std::vector<std::string>& arguments) {
  at::set_num_threads(1);
  const SimpleResolver resolver(
      ClusterSpec{{"worker", split(arguments[0])}, {"ps", split(arguments[1])}});
  const ParameterServerStrategy strategy(resolver);
  ClusterCoordinator coordinator(strategy);
  auto scope = strategy.scope();
  const Variable count("count", torch::zeros({}, torch::kInt64));
  const Tensor one = torch::ones({}, torch::kInt64);
  const auto nothing = function("nothing", [] {});
  const auto update = function("update", [&] { count.assign_add(one); });
  const auto echo = function("echo", [](const Tensor& x) { return x + 1; });
  std::vector<std::unique_ptr<BareClient>> bare;
  for (const std::string& address : split(arguments[2])) {
    bare.push_back(std::make_unique<BareClient>(address));
  }
  const std::string request(8, 'x');

  const std::map<std::string, std::function<void(int)>> commands = {
      {"closures",
       [&](int n) {
         for (int i = 0; i < n; ++i) coordinator.schedule(nothing);
         coordinator.join();
       }},
      {"update",
       [&](int n) {
         for (int i = 0; i < n; ++i) coordinator.schedule(update);
         coordinator.join();
       }},
      {"bare",
       [&](int n) {
         std::vector<std::thread> threads;
         for (auto& client : bare) {
           threads.emplace_back([&] { client->calls(request, n / 2, 64); });
         }
         for (std::thread& thread : threads) thread.join();
       }},
      {"latency",
       [&](int n) {
         for (int i = 0; i < n; ++i) coordinator.fetch(coordinator.schedule(echo, one));
       }},
      {"bare_latency",
       [&](int n) {
         for (int i = 0; i < n; ++i) bare[i % bare.size()]->call(request);
       }},
  };
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string what;
    int n = 0;
    words >> what >> n;
    commands.at(what)(n);
    std::puts("done");
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: coordinator_bench WORKERS PS BARE\n");
    return 2;
  }
  try {
    return trireme::bench::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "coordinator_bench: %s\n", error.what());
    return 1;
  }
}
