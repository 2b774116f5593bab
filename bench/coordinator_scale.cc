// The two sides of bench/scale_coordinator: many servers in one process, and the program that
// schedules closures on them.
//
//   coordinator_scale serve CLUSTER JOB FIRST COUNT
//   coordinator_scale schedule CLUSTER
//
// CLUSTER is a file with the cluster's spec. Both print "ready". A process of workers prints
// "reached" when each of its workers has run a closure. Servers end when their input is closed.
//
// The scheduling program executes each line of its input and answers "done": "connect" creates a
// coordinator, which from then on has closures for every worker that connects; "closures N"
// schedules empty closures and joins; "update N" schedules closures that add 1 to a variable.
#include <ATen/Parallel.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <future>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/base/file_limit.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/variable.h"
#include "trireme/runtime/task_server.h"
#include "trireme/server/services.h"

namespace trireme::bench {
namespace {

using std::chrono::milliseconds;

void say(const char* word) {
  std::puts(word);
  std::fflush(stdout);
}

ClusterSpec read_spec(const std::string& path) {
  std::ifstream file(path);
  return ClusterSpec::from_json({std::istreambuf_iterator<char>(file), {}});
}

bool has_answered_closures(const TaskServer& server) {
  return server.context().metrics.counters().at("rpc_server/trireme.Closures/Run/bytes_out") > 0;
}

int serve(const ClusterSpec& spec, const std::string& job, int first, int count) {
  std::vector<std::unique_ptr<TaskServer>> servers;
  for (int i = first; i < first + count; ++i) {
    servers.push_back(value_or_throw(
        TaskServer::start({.spec = spec, .task = {job, i}, .services = all_services()})));
  }
  say("ready");
  if (job == "worker") {
    for (const auto& server : servers) {
      while (!has_answered_closures(*server)) std::this_thread::sleep_for(milliseconds(5));
    }
    say("reached");
  }
  for (std::string line; std::getline(std::cin, line);) {
  }
  for (const auto& server : servers) server->stop(Clock::real().now());
  return 0;
}

// Schedules rounds of closures, one for each worker, until end() is called. Pauses between the
// rounds so that further workers can connect.
class Feeder {
 public:
  Feeder(ClusterCoordinator& coordinator, const Function<void()>& closure, int workers)
      : fed_(std::async(std::launch::async, [=, this, &coordinator, &closure] {
          while (!enough_) {
            for (int i = 0; i < workers; ++i) coordinator.schedule(closure);
            coordinator.join();
            std::this_thread::sleep_for(milliseconds(10));
          }
        })) {}

  ~Feeder() { enough_ = true; }

  // Ends the rounds. Throws the error of the coordinator, if there was one.
  void end() {
    enough_ = true;
    fed_.get();
  }

 private:
  std::atomic<bool> enough_ = false;
  std::future<void> fed_;
};

int schedule(const ClusterSpec& spec) {
  const ParameterServerStrategy strategy{SimpleResolver(spec)};
  const auto scope = strategy.scope();
  const Variable count("count", torch::zeros({}, torch::kInt64));
  const torch::Tensor one = torch::ones({}, torch::kInt64);
  const auto nothing = function("nothing", [] {});
  const auto update = function("update", [&] { count.assign_add(one); });
  std::unique_ptr<ClusterCoordinator> coordinator;
  std::unique_ptr<Feeder> feeder;
  int64_t updates = 0;
  say("ready");
  for (std::string line; std::getline(std::cin, line);) {
    if (const auto last = std::exchange(feeder, nullptr)) last->end();
    std::istringstream words(line);
    std::string what;
    int n = 0;
    words >> what >> n;
    if (what == "connect") {
      coordinator = std::make_unique<ClusterCoordinator>(strategy);
      feeder = std::make_unique<Feeder>(*coordinator, nothing, spec.num_tasks("worker"));
    } else {
      for (int i = 0; i < n; ++i) coordinator->schedule(what == "update" ? update : nothing);
      coordinator->join();
    }
    if (what == "update") updates += n;
    if (count.read().item<int64_t>() != updates)
      throw std::runtime_error("the variable has the wrong count");
    say("done");
  }
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  raise_file_limit();
  at::set_num_threads(1);
  if (arguments.size() == 5 && arguments[0] == "serve") {
    return serve(read_spec(arguments[1]), arguments[2], std::stoi(arguments[3]),
                 std::stoi(arguments[4]));
  }
  if (arguments.size() == 2 && arguments[0] == "schedule") return schedule(read_spec(arguments[1]));
  std::fprintf(stderr,
               "coordinator_scale: wrong arguments; run bench/scale_coordinator, which starts this "
               "program\n");
  return 2;
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  try {
    return trireme::bench::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "coordinator_scale: %s\n", error.what());
    return 1;
  }
}
