// Measures captured steps against the same code run eagerly, in turns, in one process.
//
//   graph_bench ROUNDS SECONDS [CASE...]
//   graph_bench --save MODEL FILE             writes the graph of a step with Adam
//
// Cases: step_mlp step_mlp_512 step_conv step_transformer step_towers peak_conv peak_transformer
// load_10k operator_overhead; branches_MODEL, where the anchor is the replay in captured order.
//
// Prints one JSON object per case and round. `ours` and `anchor` are speeds (more is better),
// except for the peak_ cases, where they are bytes.
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "tests/integration/graph/models.h"
#include "trireme/base/machine.h"
#include "trireme/base/status.h"
#include "trireme/exec/branch_tuner.h"
#include "trireme/exec/replay.h"
#include "trireme/exec/step_generator.h"
#include "trireme/function/function.h"
#include "trireme/graph/graph_file.h"
#include "trireme/optim/optimizer.h"

namespace trireme {
namespace {

using torch::Tensor;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void print(const std::string& name, double ours, double anchor, const char* unit) {
  std::printf(
      "{\"case\": \"%s\", \"ours\": %.6g, \"anchor\": %.6g, \"unit\": \"%s\", "
      "\"threads\": %d}\n",
      name.c_str(), ours, anchor, unit, at::get_num_threads());
  std::fflush(stdout);
}

struct Training {
  explicit Training(const std::string& name)
      : model(models::make_model(name)),
        variables(track(model.module)),
        optimizer(variables, {.lr = 1e-4}),
        step(function("step", [this](const Tensor& x, const Tensor& y) { return body(x, y); })),
        batch(model.batch(0)) {}

  Tensor body(const Tensor& x, const Tensor& y) const {
    Tensor loss = model.loss(x, y);
    optimizer.minimize(loss);
    return loss.detach();
  }

  models::Model model;
  std::vector<Variable> variables;
  Adam optimizer;
  Function<Tensor(const Tensor&, const Tensor&)> step;
  models::Batch batch;
};

// Returns the values of the graph's variables, in the graph's order.
std::vector<Tensor> variables_of(const Training& training, const internal::Plan& plan) {
  std::map<std::string, Tensor> named;
  for (const Variable& variable : training.variables) named[variable.name()] = variable.read();
  for (const Variable& variable : training.optimizer.state()) {
    named[variable.name()] = variable.read();
  }
  std::vector<Tensor> variables;
  for (const auto& variable : plan.graph->def.variables()) {
    variables.push_back(named.at(variable.name()).detach());
  }
  return variables;
}

template <typename F>
double per_second(double seconds, const F& run) {
  const auto start = Clock::now();
  int count = 0;
  do {
    run();
    ++count;
  } while (seconds_since(start) < seconds);
  return count / seconds_since(start);
}

template <typename Ours, typename Anchor>
void measure_in_turns(const std::string& name, int rounds, double seconds, const Ours& ours,
                      const Anchor& anchor) {
  for (int i = 0; i < rounds; ++i) {
    // Take short turns, so that a change of the machine's speed affects both sides.
    double fast = 0, slow = 0;
    constexpr int kTurns = 5;
    for (int turn = 0; turn < kTurns; ++turn) {
      fast += per_second(seconds / kTurns / 2, ours) / kTurns;
      slow += per_second(seconds / kTurns / 2, anchor) / kTurns;
    }
    print(name, fast, slow, "steps/s");
  }
}

constexpr int kWarmUp = 20;  // Steps until replay has measured which schedule is faster.

void measure_step(const std::string& name, int rounds, double seconds) {
  Training training(name.substr(5));
  const auto ours = [&] { training.step(training.batch.x, training.batch.y); };
  const auto eager = [&] { training.body(training.batch.x, training.batch.y); };
  for (int i = 0; i < kWarmUp; ++i) ours();
  for (int i = 0; i < 3; ++i) eager();
  measure_in_turns(name, rounds, seconds, ours, eager);
}

void measure_branches(const std::string& name, int rounds, double seconds) {
  Training training(name.substr(9));
  const auto plan =
      internal::Access<Graph>::plan(training.step.graph(training.batch.x, training.batch.y));
  const std::vector<Tensor> variables = variables_of(training, *plan);
  internal::BranchTuner tuner;
  const auto run = [&](const internal::BranchSchedule* schedule) {
    internal::ReplayOptions options;
    options.schedule = schedule;
    options.tuner = &tuner;
    value_or_throw(internal::replay(*plan, {training.batch.x, training.batch.y}, variables,
                                    internal::make_step_generator(0, 0), options));
  };
  const internal::BranchSchedule one_lane =
      internal::schedule_branches(*plan, std::vector<double>(plan->nodes.size()), 1);
  for (int i = 0; i < kWarmUp; ++i) run(nullptr);
  std::fprintf(stderr, "%s: %s\n", name.c_str(),
               tuner.uses_branches() ? "in branches" : "in captured order");
  measure_in_turns(
      name, rounds, seconds, [&] { run(nullptr); }, [&] { run(&one_lane); });
}

// Runs some steps and prints the peak memory of the process. Runs in its own process and loads the
// graph from a file, so that the memory of the capture does not count.
int run_for_peak(const std::string& name, const std::string& file) {
  constexpr int kSteps = 5;
  Training training(name);
  if (file == "eager") {
    for (int i = 0; i < kSteps; ++i) training.body(training.batch.x, training.batch.y);
  } else {
    const Graph graph = Graph::load(file);
    const std::vector<Tensor> variables =
        variables_of(training, *internal::Access<Graph>::plan(graph));
    for (int i = 0; i < kSteps; ++i) {
      value_or_throw(internal::replay(*internal::Access<Graph>::plan(graph),
                                      {training.batch.x, training.batch.y}, variables,
                                      internal::make_step_generator(0, i)));
    }
  }
  std::printf("%.0f\n", static_cast<double>(process_memory().peak));
  return 0;
}

double peak_of_process(const std::string& name, const std::string& file) {
  const std::string command = std::string("/proc/self/exe");
  const std::string self = std::filesystem::read_symlink(command).string();
  FILE* pipe = popen((self + " --peak " + name + " " + file).c_str(), "r");
  double bytes = 0;
  if (pipe == nullptr || std::fscanf(pipe, "%lf", &bytes) != 1) std::abort();
  pclose(pipe);
  return bytes;
}

void measure_peak(const std::string& name, int rounds) {
  const std::string model = name.substr(5);
  const std::string file = std::filesystem::temp_directory_path() / ("graph_bench." + model);
  {
    Training training(model);
    training.step.graph(training.batch.x, training.batch.y).save(file);
  }
  for (int i = 0; i < std::min(rounds, 3); ++i) {
    print(name, peak_of_process(model, file), peak_of_process(model, "eager"), "bytes");
  }
  std::filesystem::remove(file);
}

std::string chain_of_operators(int count) {
  auto chain = function("chain",
                        [count](const Tensor& x) {
                          Tensor y = x;
                          for (int i = 0; i < count; ++i) y = i % 2 == 0 ? y + 1.0 : y * 0.5;
                          return y;
                        },
                        {.check_capture = false});
  return value_or_throw(
      internal::encode_graph(*internal::Access<Graph>::plan(chain.graph(torch::ones({4})))->graph));
}

// Measures the time to load a graph. The anchor is the limit of 2 s per load.
void measure_load(int rounds) {
  const std::string bytes = chain_of_operators(10000);
  for (int i = 0; i < rounds; ++i) {
    const auto start = Clock::now();
    value_or_throw(internal::compile(value_or_throw(internal::decode_graph(bytes))));
    print("load_10k", 1 / seconds_since(start), 0.5, "loads/s");
  }
}

void measure_operator_overhead(int rounds, double seconds) {
  constexpr int kCount = 1000;
  auto chain = [](Tensor y) {
    for (int i = 0; i < kCount; ++i) y = i % 2 == 0 ? y + 1.0 : y * 0.5;
    return y;
  };
  auto captured = function("chain", [chain](const Tensor& x) { return chain(x); });
  const Tensor x = torch::ones({4});
  captured(x);
  for (int i = 0; i < rounds; ++i) {
    const double ours = per_second(seconds / 2, [&] { captured(x); });
    const double eager = per_second(seconds / 2, [&] {
      const torch::NoGradGuard no_gradients;
      chain(x);
    });
    print("operator_overhead", ours * kCount, eager * kCount, "ops/s");
  }
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  using namespace trireme;
  if (argc == 4 && std::string(argv[1]) == "--peak") return run_for_peak(argv[2], argv[3]);
  if (argc == 4 && std::string(argv[1]) == "--save") {
    Training training(argv[2]);
    training.step.graph(training.batch.x, training.batch.y).save(argv[3]);
    return 0;
  }
  if (argc < 3) {
    std::fprintf(
        stderr,
        "graph_bench: wrong arguments; run bench/compare graph, which starts this program\n");
    return 2;
  }
  const int rounds = std::atoi(argv[1]);
  const double seconds = std::atof(argv[2]);
  std::vector<std::string> cases(argv + 3, argv + argc);
  if (cases.empty()) {
    cases = {"step_mlp",  "step_mlp_512",     "step_conv", "step_transformer",
             "peak_conv", "peak_transformer", "load_10k",  "operator_overhead"};
  }
  for (const std::string& name : cases) {
    if (name.starts_with("step_")) {
      measure_step(name, rounds, seconds);
    } else if (name.starts_with("branches_")) {
      measure_branches(name, rounds, seconds);
    } else if (name.starts_with("peak_")) {
      measure_peak(name, rounds);
    } else if (name == "load_10k") {
      measure_load(rounds);
    } else if (name == "operator_overhead") {
      measure_operator_overhead(rounds, seconds);
    } else {
      std::fprintf(stderr, "graph_bench: there is no case '%s'\n", name.c_str());
      return 2;
    }
  }
  return 0;
}
