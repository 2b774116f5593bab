// A client program for tests that kill, freeze and restart it. Its closures add 1 to every element
// of a variable that has one shard on each parameter server. It prints a ledger, a line at a time:
//
//   begin N…   the elements that it found or made
//   sent N     no more than N updates of each element have been scheduled
//   done N     at least N updates of each element have been applied
//   end N…     the elements after the last closure
//   error CODE: text
//
//   job_client CLUSTER_JSON CERTS JOB fresh|resume free|keep LEASE_MS CLOSURES REPEAT
//
// With CLOSURES = 0 it goes on until SIGTERM.
#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/strategy/parameter_server_strategy.h"

namespace tr = trireme;
using torch::Tensor;

namespace {

constexpr int64_t kBurst = 100;  // Closures between two lines of the ledger.
constexpr size_t kBurstsInFlight = 5;

volatile std::sig_atomic_t stopped = 0;

void print(const char* what, const Tensor& elements) {
  std::string line = what;
  for (int64_t i = 0; i < elements.numel(); ++i) {
    line += " " + std::to_string(elements[i].item<int64_t>());
  }
  std::printf("%s\n", line.c_str());
}

// Schedules closures and keeps the ledger. Returns once all of them are done.
void run_closures(tr::ClusterCoordinator& coordinator,
                  const tr::Function<Tensor(const Tensor&)>& add, int64_t closures, int repeat) {
  const Tensor work = torch::ones({120, 120});
  std::deque<std::vector<tr::RemoteValue<>>> bursts;
  int64_t scheduled = 0, done = 0;
  const auto finish_oldest = [&] {
    for (const tr::RemoteValue<>& value : bursts.front()) coordinator.fetch(value);
    done += static_cast<int64_t>(bursts.front().size());
    std::printf("done %ld\n", done * repeat);
    bursts.pop_front();
  };
  while (scheduled < closures && stopped == 0) {
    const int64_t burst = std::min(kBurst, closures - scheduled);
    scheduled += burst;
    // Printed before the closures are scheduled, so that the ledger is never too low.
    std::printf("sent %ld\n", scheduled * repeat);
    auto& values = bursts.emplace_back();
    for (int64_t i = 0; i < burst; ++i) {
      values.push_back(coordinator.schedule({.repeat = repeat}, add, work));
    }
    if (bursts.size() >= kBurstsInFlight) finish_oldest();
  }
  while (!bursts.empty()) finish_oldest();
}

void run(char** argv) {
  const auto spec = tr::ClusterSpec::from_json(argv[1]);
  const int64_t servers = spec.num_tasks("ps");
  const tr::ParameterServerStrategy strategy(
      tr::Cluster(spec), {.job = argv[3],
                          .resume = argv[4] == std::string("resume"),
                          .keep = argv[5] == std::string("keep"),
                          .lease = std::chrono::milliseconds(std::stoi(argv[6])),
                          .partitioner = tr::FixedPartitioner(servers),
                          .certs = argv[2]});
  const auto scope = strategy.scope();
  const tr::Variable table("table", torch::zeros({servers}, torch::kInt64));
  print("begin", table.read());
  tr::ClusterCoordinator coordinator(strategy);
  const auto add = tr::function("add", std::function<Tensor(const Tensor&)>([&](const Tensor& x) {
                                  table.assign_add(torch::ones({servers}, torch::kInt64));
                                  return x.matmul(x).sum();
                                }));
  const int64_t closures = std::stoll(argv[7]);
  try {
    run_closures(coordinator, add, closures > 0 ? closures : std::numeric_limits<int64_t>::max(),
                 std::stoi(argv[8]));
  } catch (const tr::Error&) {
    coordinator.join();  // Throws the cause, where fetch() has thrown CANCELLED.
    throw;
  }
  coordinator.join();
  print("end", table.read());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) return 2;
  std::signal(SIGTERM, [](int) { stopped = 1; });
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  at::set_num_threads(1);
  try {
    run(argv);
  } catch (const tr::Error& error) {
    std::printf("error %s: %s\n", tr::error_code_name(error.code()), error.what());
    return 1;
  }
  return 0;
}
