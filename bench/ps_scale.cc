// The client side of bench/scale_ps: many clients of the parameter servers in one process.
//
//   ps_scale ADDRESS,… large GIB
//   ps_scale ADDRESS,… small CLIENTS STEPS
//
// "large" creates variables of 16 MiB and pulls them one by one, twice. "small" has each client
// pull and push 10,000 small variables in every step. Prints one JSON object per measurement: the
// seconds it took, and the memory of the process in bytes.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "trireme/base/ids.h"
#include "trireme/base/machine.h"
#include "trireme/base/status.h"
#include "trireme/ps/ps_client.h"

namespace trireme::bench {
namespace {

constexpr int kSmall = 10000;

double seconds_since(Time start) {
  return std::chrono::duration<double>(Clock::real().now() - start).count();
}

std::unique_ptr<PsClient> connect(const std::string& addresses) {
  const std::vector<std::string> list = absl::StrSplit(addresses, ',');
  return value_or_throw(
      PsClient::connect({.spec = ClusterSpec(std::map<std::string, TaskAddresses>{{"ps", list}}),
                         .timeout = std::chrono::minutes(10)},
                        after(std::chrono::minutes(2))));
}

std::vector<PsVariable> create(PsClient& client, const std::vector<VariableSpec>& specs) {
  std::vector<PsClient::PlacedVariable> made;
  for (const VariableLayout& layout :
       ShardPlacer(client.servers(), Placement::kBalanced).place(specs)) {
    made.push_back({.layout = layout});
  }
  return value_or_throw(client.create(made));
}

void report(const char* what, double amount, double seconds) {
  std::printf("{\"case\": \"%s\", \"amount\": %g, \"seconds\": %g, \"client_bytes\": %ld}\n", what,
              amount, seconds, process_memory().resident);
  std::fflush(stdout);
}

int large(const std::string& addresses, int gibibytes) {
  const auto client = connect(addresses);
  std::vector<VariableSpec> specs;
  for (int i = 0; i < gibibytes * 64; ++i) specs.push_back({absl::StrCat("v", i), {4 << 20}});
  const Time start = Clock::real().now();
  const auto variables = create(*client, specs);
  report("create", gibibytes, seconds_since(start));
  for (int step = 0; step < 2; ++step) {
    const Time begin = Clock::real().now();
    for (const PsVariable& variable : variables) value_or_throw(client->pull({{variable}}));
    report("pull", gibibytes, seconds_since(begin));
  }
  return 0;
}

int small(const std::string& addresses, int clients, int steps) {
  const auto chief = connect(addresses);
  std::vector<VariableSpec> specs;
  for (int i = 0; i < kSmall; ++i) specs.push_back({absl::StrCat("s", i), {64}});
  const std::vector<PsVariable> made = create(*chief, specs);
  std::vector<VariableLayout> layouts;
  for (const PsVariable& variable : made) layouts.push_back(variable.layout());
  const uint64_t writer = new_incarnation();
  throw_if_error(chief->begin_writer(writer));

  struct Worker {
    std::unique_ptr<PsClient> client;
    std::vector<PsVariable> variables;
  };
  std::vector<Worker> workers(clients);
  for (Worker& worker : workers) {
    worker.client = connect(addresses);
    // All workers share the layouts, but each opens the variables itself, as a worker in a process
    // of its own does.
    worker.variables = value_or_throw(worker.client->open(layouts));
  }
  std::atomic<uint64_t> sequence = 0;
  const auto step = [&](Worker& worker) {
    std::vector<PsPull> pulls;
    for (const PsVariable& variable : worker.variables) pulls.push_back({variable});
    const auto values = value_or_throw(worker.client->pull(std::move(pulls)));
    std::vector<PsPush> pushes;
    for (int i = 0; i < kSmall; ++i) {
      pushes.push_back({.variable = worker.variables[i], .values = values[i]});
    }
    throw_if_error(worker.client->push(pushes, {.id = {writer, sequence++, 0}}));
  };
  step(workers[0]);
  const Time start = Clock::real().now();
  std::vector<std::thread> threads;
  for (Worker& worker : workers) {
    threads.emplace_back([&] {
      for (int i = 0; i < steps; ++i) step(worker);
    });
  }
  for (std::thread& thread : threads) thread.join();
  report("step", clients, seconds_since(start) / steps);
  throw_if_error(chief->end_writer(writer));
  return 0;
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 3 && arguments[1] == "large") {
    return trireme::bench::large(arguments[0], std::stoi(arguments[2]));
  }
  if (arguments.size() == 4 && arguments[1] == "small") {
    return trireme::bench::small(arguments[0], std::stoi(arguments[2]), std::stoi(arguments[3]));
  }
  std::fprintf(stderr,
               "ps_scale: wrong arguments; run bench/scale_ps, which starts this program\n");
  return 2;
}
