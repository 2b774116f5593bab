// Saves, restores and trains on a cluster, for bench/compare.
//
//   checkpoint_bench CLUSTER_JSON DIRECTORY MIB
//
// The state has MIB MiB on the parameter servers: an MLP of 25 million parameters with the slots of
// Adam, and tables for the rest. Executes each line of its input and answers with the line "done",
// followed by a JSON object of figures:
//
//   save_copy, save_stream           saves and waits until the checkpoint is on the disk
//   restore                          restores the newest checkpoint
//   steps SECONDS                    trains for about that time
//   steps_while_copy SECONDS         trains and saves over and over; steps per second are counted
//   steps_while_stream SECONDS       from the end of the cut to the end of the save
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/variable.h"
#include "trireme/optim/optimizer.h"
#include "trireme/train/checkpoint_manager.h"

namespace trireme::bench {
namespace {

using torch::Tensor;
using SteadyTime = std::chrono::steady_clock::time_point;

constexpr int64_t kInputs = 1024, kHidden = 4096, kBatch = 32;
constexpr int kTables = 16;
constexpr int64_t kMiB = 1 << 20;

SteadyTime now() {
  return std::chrono::steady_clock::now();
}

double seconds_between(SteadyTime from, SteadyTime to) {
  return std::chrono::duration<double>(to - from).count();
}

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    register_module("in", in);
    register_module("hidden", hidden);
    register_module("out", out);
  }
  Tensor forward(const Tensor& x) {
    return out->forward(hidden->forward(in->forward(x).relu()).relu());
  }
  torch::nn::Linear in{kInputs, kHidden}, hidden{kHidden, kHidden}, out{kHidden, kInputs};
};
TORCH_MODULE(Mlp);

// Keeps workers busy with steps, and counts them. A step takes longer than a save is measured
// exactly to, so counts are interpolated between the ends of two steps of a worker.
class Training {
 public:
  Training(ClusterCoordinator& coordinator, std::function<RemoteValue<Tensor>()> schedule)
      : coordinator_(coordinator), schedule_(std::move(schedule)) {
    note_ends();
    // Always one step more than the workers run.
    feeder_ = std::thread([this] { feed(); });
    watcher_ = std::thread([this] {
      while (!stopped_) {
        note_ends();
        std::this_thread::sleep_for(std::chrono::microseconds(500));
      }
    });
    wait_for_steps(2 * coordinator_.workers().size());
  }
  // Ends the training; throws the error of a step.
  void end() {
    wait_for_steps(2 * coordinator_.workers().size());
    stopped_ = true;
    feeder_.join();
    watcher_.join();
    coordinator_.join();
  }

  // Returns the number of steps that were done at a time. Needs steps that end before and after it.
  double steps_at(SteadyTime time) {
    std::lock_guard lock(mutex_);
    double steps = 0;
    for (const auto& ends : ends_) {
      const auto after =
          std::find_if(ends.begin(), ends.end(), [&](const End& end) { return end.time > time; });
      if (after == ends.begin() || after == ends.end()) continue;
      const End& before = *(after - 1);
      steps += before.steps + (after->steps - before.steps) * seconds_between(before.time, time) /
                                  seconds_between(before.time, after->time);
    }
    return steps;
  }
  // Notes that no step is under way, as at the end of a cut: the next ones begin now.
  void note_cut() {
    const std::vector<WorkerState> workers = coordinator_.workers();
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < workers.size(); ++i) {
      ends_[i].push_back({now(), static_cast<double>(workers[i].closures_done)});
    }
  }
  // Blocks until that many more steps are done.
  void wait_for_steps(uint64_t more) {
    const uint64_t wanted = done() + more;
    while (done() < wanted && !failed_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  struct End {
    SteadyTime time;
    double steps;  // Steps that the worker had done by then.
  };

  uint64_t done() {
    uint64_t done = 0;
    for (const WorkerState& worker : coordinator_.workers()) done += worker.closures_done;
    return done;
  }
  void note_ends() {
    const std::vector<WorkerState> workers = coordinator_.workers();
    std::lock_guard lock(mutex_);
    ends_.resize(workers.size());
    for (size_t i = 0; i < workers.size(); ++i) {
      const double steps = static_cast<double>(workers[i].closures_done);
      if (ends_[i].empty() || steps > ends_[i].back().steps) ends_[i].push_back({now(), steps});
    }
  }
  void feed() try {
    std::deque<RemoteValue<Tensor>> scheduled;
    while (!stopped_) {
      scheduled.push_back(schedule_());
      if (scheduled.size() < 6) continue;
      coordinator_.fetch(scheduled.front());
      scheduled.pop_front();
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "checkpoint_bench: a step failed: %s\n", error.what());
    failed_ = true;
  }

  ClusterCoordinator& coordinator_;
  const std::function<RemoteValue<Tensor>()> schedule_;
  std::mutex mutex_;
  std::vector<std::vector<End>> ends_;  // One list for each worker.
  std::atomic<bool> stopped_ = false, failed_ = false;
  std::thread feeder_, watcher_;
};

using Figures = std::map<std::string, double>;

std::string to_json(const Figures& figures) {
  std::ostringstream text;
  text << "{";
  for (const auto& [name, value] : figures) {
    text << (text.str().size() > 1 ? ", " : "") << '"' << name << "\": " << value;
  }
  text << "}";
  return text.str();
}

class Bench {
 public:
  Bench(const std::string& cluster, const std::string& directory, int64_t mib)
      : strategy_(Cluster(ClusterSpec::from_json(cluster)),
                  {.partitioner = FixedPartitioner(
                       static_cast<int64_t>(ClusterSpec::from_json(cluster).num_tasks("ps")))}),
        coordinator_(strategy_),
        net_(strategy_.distribute<Mlp>()),
        optimizer_(make_optimizer()),
        data_(coordinator_.create_per_worker_dataset(
            Dataset::from_tensors({torch::randn({1024, kInputs}), torch::randn({1024, kInputs})})
                .shuffle(1024)
                .repeat()
                .batch(kBatch))),
        step_(function("step", std::function<Tensor(Iterator&)>([this](Iterator& batches) {
                         auto [x, y] = batches.next<2>();
                         const Tensor loss = torch::mse_loss(net_->forward(x), y);
                         optimizer_.minimize(loss);
                         return loss;
                       }))) {
    std::vector<Checkpointed> state = {net_, optimizer_, data_};
    int64_t left = mib * kMiB;
    for (const Tensor& parameter : Mlp()->parameters()) {
      left -= static_cast<int64_t>(3 * parameter.nbytes());
    }
    const auto scope = strategy_.scope();
    const Tensor table = torch::rand({left / kTables / 256, 64});
    for (int i = 0; i < kTables; ++i) {
      state.emplace_back(Variable("table_" + std::to_string(i), table, {.trainable = false}));
    }
    copy_.emplace(directory, state, CheckpointOptions{.keep = 1, .mode = SaveMode::kCopy});
    stream_.emplace(directory, state, CheckpointOptions{.keep = 1, .mode = SaveMode::kStream});
    coordinator_.schedule(step_, data_.iterator());
    coordinator_.join();
  }

  Figures save(SaveMode mode) {
    CheckpointManager& manager = manager_of(mode);
    manager.save(++saves_);
    manager.wait();
    return figures_of(manager.last_save());
  }
  Figures restore() {
    stream_->restore_or_initialize();
    return {};
  }
  Figures steps(double seconds) {
    Training training(coordinator_, schedule());
    const SteadyTime begin = now();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    const SteadyTime end = now();
    training.end();
    return {{"steps_per_second",
             (training.steps_at(end) - training.steps_at(begin)) / seconds_between(begin, end)}};
  }
  Figures steps_while_saving(SaveMode mode, double seconds) {
    CheckpointManager& manager = manager_of(mode);
    Training training(coordinator_, schedule());
    std::vector<std::pair<SteadyTime, SteadyTime>> windows;
    double measured = 0;
    Figures figures;
    do {
      const SteadyTime called = now();
      manager.save(++saves_);
      training.note_cut();
      const SteadyTime begin = now();
      manager.wait();
      const SteadyTime end = now();
      windows.emplace_back(begin, end);
      measured += seconds_between(begin, end);
      figures = figures_of(manager.last_save());
      figures["save_call_seconds"] = seconds_between(called, begin);
    } while (measured < seconds);
    training.end();
    double steps = 0;
    for (const auto& [begin, end] : windows) {
      steps += training.steps_at(end) - training.steps_at(begin);
    }
    figures["steps_per_second"] = steps / measured;
    return figures;
  }

 private:
  Adam make_optimizer() const {
    const auto scope = strategy_.scope();
    return Adam(net_, {.lr = 1e-4});
  }
  CheckpointManager& manager_of(SaveMode mode) {
    return mode == SaveMode::kCopy ? *copy_ : *stream_;
  }
  std::function<RemoteValue<Tensor>()> schedule() {
    return [this] { return coordinator_.schedule(step_, data_.iterator()); };
  }
  static Figures figures_of(const SaveStats& stats) {
    const auto seconds = [](auto duration) {
      return std::chrono::duration<double>(duration).count();
    };
    return {{"stall_seconds", seconds(stats.stall)},
            {"copy_seconds", seconds(stats.copy)},
            {"pool_seconds", seconds(stats.pool_wait)},
            {"longest_pool_seconds", seconds(stats.longest_pool_wait)},
            {"extra_mib", static_cast<double>(stats.extra_bytes) / kMiB}};
  }

  const ParameterServerStrategy strategy_;
  ClusterCoordinator coordinator_;
  Mlp net_;
  const Adam optimizer_;
  const PerWorkerDataset data_;
  const Function<Tensor(Iterator&)> step_;
  std::optional<CheckpointManager> copy_, stream_;
  int64_t saves_ = 0;
};

int run(const std::vector<std::string>& arguments) {
  at::set_num_threads(1);
  Bench bench(arguments[0], arguments[1], std::stoll(arguments[2]));
  const std::map<std::string, std::function<Figures(double)>> commands = {
      {"save_copy", [&](double) { return bench.save(SaveMode::kCopy); }},
      {"save_stream", [&](double) { return bench.save(SaveMode::kStream); }},
      {"restore", [&](double) { return bench.restore(); }},
      {"steps", [&](double seconds) { return bench.steps(seconds); }},
      {"steps_while_copy",
       [&](double seconds) { return bench.steps_while_saving(SaveMode::kCopy, seconds); }},
      {"steps_while_stream",
       [&](double seconds) { return bench.steps_while_saving(SaveMode::kStream, seconds); }},
  };
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string what;
    double seconds = 0;
    words >> what >> seconds;
    std::printf("done %s\n", to_json(commands.at(what)(seconds)).c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: checkpoint_bench CLUSTER_JSON DIRECTORY MIB\n");
    return 2;
  }
  try {
    return trireme::bench::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "checkpoint_bench: %s\n", error.what());
    return 1;
  }
}
