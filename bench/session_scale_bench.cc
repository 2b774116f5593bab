// Measures how steps scale with the number of tasks that they are cut over: 2, 4, 8, 16 and 32
// servers in this process.
//
//   session_scale_bench [STEPS]
//
// Prints a table for docs/scale.md. For each shape of graph and number of tasks it has the time of
// a step when steps run one after the other, the time per step when 4 are in flight, and the calls
// and bytes of a step as the servers count them.
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/capture/device_scope.h"
#include "trireme/function/function.h"
#include "trireme/runtime/server_service.h"
#include "trireme/runtime/session.h"
#include "trireme/server/in_process_cluster.h"

namespace trireme::bench {
namespace {

using std::chrono::steady_clock;
using torch::Tensor;
using Body = Tensor (*)(const Tensor& x, int tasks);

constexpr int64_t kValues = 256;  // Elements of each tensor: 1 KiB.
constexpr size_t kInFlight = 4;

std::string device(int task) {
  return absl::StrCat("/job:worker/task:", task);
}

// Runs one operator on each task, one task after the other.
Tensor chain(const Tensor& x, int tasks) {
  Tensor y = x;
  for (int i = 0; i < tasks; ++i) {
    DeviceScope on(device(i));
    y = y + 1;
  }
  return y;
}

// Sends the same input to each task, and all results to the first.
Tensor star(const Tensor& x, int tasks) {
  std::vector<Tensor> results;
  for (int i = 0; i < tasks; ++i) {
    DeviceScope on(device(i));
    results.push_back(x + i);
  }
  return torch::stack(results).sum(0);
}

// Sends the result of each task to every other task, and the sums that those compute to the first.
Tensor all_to_all(const Tensor& x, int tasks) {
  std::vector<Tensor> results, sums;
  for (int i = 0; i < tasks; ++i) {
    DeviceScope on(device(i));
    results.push_back(x + i);
  }
  for (int i = 0; i < tasks; ++i) {
    DeviceScope on(device(i));
    sums.push_back(torch::stack(results).sum(0));
  }
  return torch::stack(sums).sum(0);
}

struct Traffic {
  uint64_t calls = 0, bytes = 0;
};

// Returns the traffic of all steps so far, summed over all tasks.
Traffic traffic_of(const InProcessCluster& cluster) {
  Traffic sum;
  for (const TaskId& task : cluster.spec().all_tasks()) {
    Channel channel({.address = cluster.spec().address(task)});
    std::promise<absl::StatusOr<TaskDescription>> answer;
    describe_task(
        channel, after(std::chrono::seconds(30)),
        [&](absl::StatusOr<TaskDescription> result) { answer.set_value(std::move(result)); });
    const TaskDescription description = value_or_throw(answer.get_future().get());
    for (const std::string method :
         {"/trireme.Master/RunStep", "/trireme.Worker/RunPart", "/trireme.Worker/Deliver"}) {
      const auto counter = [&](const char* what) {
        const auto found = description.counters.find(absl::StrCat("rpc_server", method, what));
        return found == description.counters.end() ? 0 : found->second;
      };
      sum.calls += counter("/calls");
      sum.bytes += counter("/bytes_in") + counter("/bytes_out");
    }
  }
  return sum;
}

double milliseconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(steady_clock::now() - start).count();
}

void measure(const std::string& shape, Body body, int tasks, int steps) {
  InProcessCluster cluster({.workers = tasks});
  Session session(cluster.target({"worker", 0}));
  const auto f = function(shape, [&](const Tensor& x) { return body(x, tasks); });
  const Tensor x = torch::ones({kValues});
  run_eagerly(true);  // Runs in this program, without regard to the device scopes.
  const double expected = f(x)[0].item<double>();
  run_eagerly(false);
  const auto check = [&](const Tensor& y) {
    if (y[0].item<double>() != expected) throw std::runtime_error("the result is wrong");
  };
  for (int i = 0; i < 20; ++i) check(session.run(f, x));

  const Traffic before = traffic_of(cluster);
  std::vector<double> times;
  for (int i = 0; i < steps; ++i) {
    const auto start = steady_clock::now();
    check(session.run(f, x));
    times.push_back(milliseconds_since(start));
  }
  const Traffic after_steps = traffic_of(cluster);
  std::ranges::sort(times);

  const auto start = steady_clock::now();
  std::deque<std::future<Tensor>> in_flight;
  for (int i = 0; i < steps; ++i) {
    if (in_flight.size() == kInFlight) {
      check(in_flight.front().get());
      in_flight.pop_front();
    }
    in_flight.push_back(session.start(f, x));
  }
  for (auto& step : in_flight) check(step.get());
  std::printf("| %s | %d | %.2f | %.2f | %.2f | %.1f | %.1f |\n", shape.c_str(), tasks,
              times[times.size() / 2], times[times.size() * 9 / 10],
              milliseconds_since(start) / steps,
              static_cast<double>(after_steps.calls - before.calls) / steps,
              static_cast<double>(after_steps.bytes - before.bytes) / steps / 1024);
  std::fflush(stdout);
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  using namespace trireme::bench;
  const int steps = argc > 1 ? std::stoi(argv[1]) : 300;
  std::printf(
      "| graph | tasks | ms a step, median | 9 of 10 within | ms a step, 4 in flight | calls a "
      "step | KiB a step |\n|---|---|---|---|---|---|---|\n");
  for (const auto& [shape, body] :
       {std::pair<const char*, Body>{"chain", chain}, {"star", star}, {"all to all", all_to_all}}) {
    for (int tasks : {2, 4, 8, 16, 32}) measure(shape, body, tasks, steps);
  }
}
