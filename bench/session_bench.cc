// Measures steps over servers in other processes, against bare gRPC calls and against the bound
// that compute and transport alone set.
//
//   session_bench MASTER OTHER_PID MASTER_PID BARE ROUNDS [CASE...]
//
// MASTER is the target of /job:worker/task:0 of a cluster of two workers with one thread each. The
// process ids are those of the two servers, to read their CPU time. Cases: run_remote run_two_tasks
// pipeline. Prints one JSON object per case and round.
#include <ATen/Parallel.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "bench/anchors/bare_grpc.h"
#include "trireme/base/error.h"
#include "trireme/capture/device_scope.h"
#include "trireme/runtime/session.h"

namespace trireme::bench {
namespace {

using torch::Tensor;
using Clock = std::chrono::steady_clock;

constexpr int64_t kActivation = 4 << 20;  // Floats of an activation: 16 MiB.
constexpr int kStages = 8;
constexpr int kInFlight = 4;

double seconds(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void print(const std::string& name, double ours, double anchor, const char* anchor_name) {
  std::printf(
      "{\"case\": \"%s\", \"ours\": %.6g, \"anchor\": %.6g, \"unit\": \"1/s\", "
      "\"anchor_name\": \"%s\", \"threads\": 1}\n",
      name.c_str(), ours, anchor, anchor_name);
  std::fflush(stdout);
}

std::string worker(int task) {
  return "/job:worker/task:" + std::to_string(task);
}

void small_steps(Session& session, BareClient& bare, bool two_tasks, int rounds) {
  const auto step = function("step", [two_tasks](const Tensor& x) {
    if (!two_tasks) return x + 1;
    Tensor y;
    {
      DeviceScope other(worker(1));
      y = x + 1;
    }
    return y * 2;
  });
  const Tensor x = torch::ones({256});
  const std::string request(x.nbytes(), 'x');
  const int calls = 500;
  const auto ours = [&] {
    return calls / seconds([&] {
             for (int i = 0; i < calls; ++i) session.run(step, x);
           });
  };
  const auto anchor = [&] {
    return calls / seconds([&] {
             for (int i = 0; i < calls; ++i) bare.call(request);
           });
  };
  ours(), anchor();
  for (int round = 0; round < rounds; ++round) {
    const double first = ours(), second = anchor();
    print(two_tasks ? "run_two_tasks" : "run_remote", first, second, "bare gRPC");
  }
}

// Returns the user and system time of a process in seconds.
double cpu_seconds(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  text = text.substr(text.rfind(')') + 2);
  double user = 0, system = 0;
  char state;
  long field;
  std::sscanf(text.c_str(), "%c %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %lf %lf", &state, &field,
              &field, &field, &field, &field, &field, &field, &field, &field, &field, &user,
              &system);
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

using Step = Function<Tensor(const Tensor&)>;

struct Cost {
  double seconds;  // Time per step.
  double cpu;      // CPU time of both servers per step.
};

// Runs steps, kInFlight at a time, and returns their cost.
Cost cost_of(Session& session, const Step& step, const std::vector<std::string>& pids, int steps) {
  const auto cpu = [&] {
    double sum = 0;
    for (const std::string& pid : pids) sum += cpu_seconds(pid);
    return sum;
  };
  const double cpu_before = cpu();
  const double time = seconds([&] {
    std::deque<std::future<Tensor>> in_flight;
    for (int i = 0; i < steps; ++i) {
      if (in_flight.size() == kInFlight) {
        in_flight.front().get();
        in_flight.pop_front();
      }
      in_flight.push_back(session.start(step, torch::ones({})));
    }
    for (auto& step : in_flight) step.get();
  });
  return {time / steps, (cpu() - cpu_before) / steps};
}

Tensor compute(Tensor x, int passes) {
  for (int i = 0; i < passes; ++i) x = torch::tanh(x);
  return x;
}

// A pipeline whose stages alternate between the two tasks.
Step pipeline(int passes) {
  return function("pipeline", std::function<Tensor(const Tensor&)>([passes](const Tensor& x) {
                    Tensor activation;
                    for (int stage = 0; stage < kStages; ++stage) {
                      DeviceScope on(worker(stage % 2));
                      if (stage == 0) activation = torch::empty({kActivation}).fill_(x);
                      activation = compute(activation, passes);
                    }
                    return activation.narrow(0, 0, 1).clone();
                  }),
                  {.check_capture = false});
}

// The same operators, with half of the stages on each task, so that no activation is sent.
Step compute_alone(int passes) {
  return function("compute_alone", std::function<Tensor(const Tensor&)>([passes](const Tensor& x) {
                    Tensor sum;
                    for (int task = 0; task < 2; ++task) {
                      DeviceScope on(worker(task));
                      Tensor activation = torch::empty({kActivation}).fill_(x);
                      for (int stage = 0; stage < kStages / 2; ++stage)
                        activation = compute(activation, passes);
                      const Tensor first = activation.narrow(0, 0, 1).clone();
                      sum = sum.defined() ? sum + first : first;
                    }
                    return sum;
                  }),
                  {.check_capture = false});
}

// If `crosses`, sends as many activations between the tasks as the pipeline does, without computing
// on them. Otherwise only creates them, to measure what that costs.
Step transport_alone(bool crosses) {
  return function("transport_alone",
                  std::function<Tensor(const Tensor&)>([crosses](const Tensor& x) {
                    const Tensor place = torch::zeros({1}, torch::kInt64);
                    Tensor sum = x;
                    for (int stage = 0; stage + 1 < kStages; ++stage) {
                      Tensor activation;
                      {
                        DeviceScope from(worker((stage + (crosses ? 0 : 1)) % 2));
                        activation = torch::empty({kActivation});
                      }
                      DeviceScope to(worker((stage + 1) % 2));
                      sum = sum + torch::index_select(activation, 0, place);
                    }
                    return sum;
                  }),
                  {.check_capture = false});
}

// Measures the pipeline against its bound: the larger of its compute alone, its transport alone,
// and the CPU time of both divided by the two cores.
void pipeline_case(Session& session, const std::vector<std::string>& pids, int rounds) {
  const Step transport = transport_alone(true), making = transport_alone(false);
  cost_of(session, making, pids, 4);
  cost_of(session, transport, pids, 4);
  // Choose the number of passes so that computing takes 1 to 2 times as long as the transport.
  const double wanted = 1.5 * cost_of(session, transport, pids, 8).seconds;
  const Step once = compute_alone(1);
  cost_of(session, once, pids, 2);
  const double one = cost_of(session, once, pids, 8).seconds;
  const int passes = std::max(1, static_cast<int>(std::ceil(wanted / one)));
  const Step compute = compute_alone(passes), whole = pipeline(passes);
  cost_of(session, compute, pids, 2);
  cost_of(session, whole, pids, 4);
  for (int round = 0; round < rounds; ++round) {
    const int steps = 12;
    const Cost a = cost_of(session, compute, pids, steps);
    Cost b = cost_of(session, transport, pids, steps);
    const Cost made = cost_of(session, making, pids, steps);
    b = {b.seconds - made.seconds, b.cpu - made.cpu};
    const Cost all = cost_of(session, whole, pids, steps);
    const double bound = std::max({a.seconds, b.seconds, (a.cpu + b.cpu) / 2});
    std::fprintf(
        stderr,
        "pipeline: step %.1f ms; compute alone %.1f ms (CPU %.1f), transport alone %.1f ms "
        "(CPU %.1f), CPU of both / 2 cores %.1f ms; CPU of the step %.1f ms\n",
        all.seconds * 1e3, a.seconds * 1e3, a.cpu * 1e3, b.seconds * 1e3, b.cpu * 1e3,
        (a.cpu + b.cpu) / 2 * 1e3, all.cpu * 1e3);
    print("pipeline", 1 / all.seconds, 1 / bound, "bound of compute and transport");
  }
}

int run(const std::vector<std::string>& arguments) {
  at::set_num_threads(1);
  Session session(arguments[0]);
  BareClient bare(arguments[3]);
  const int rounds = std::stoi(arguments[4]);
  for (size_t i = 5; i < arguments.size(); ++i) {
    if (arguments[i] == "pipeline") {
      pipeline_case(session, {arguments[1], arguments[2]}, std::max(3, rounds / 3));
    } else {
      small_steps(session, bare, arguments[i] == "run_two_tasks", rounds);
    }
  }
  return 0;
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  if (argc < 7) {
    std::fprintf(
        stderr,
        "session_bench: wrong arguments; run bench/compare graph, which starts this program\n");
    return 2;
  }
  try {
    return trireme::bench::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "session_bench: %s\n", error.what());
    return 1;
  }
}
