// A client program for tests that kill it, and the tasks of its cluster: a fit() with
// BackupAndRestore.
//
//   fit_client learn FOLDER EPOCHS STEPS STEPS_PER_EXECUTION [--strategy NAME]
//   fit_client count FOLDER EPOCHS STEPS STEPS_PER_EXECUTION [--strategy NAME]
//
// Uses the parameter servers of TF_CONFIG, or the default strategy without them, unless a strategy
// is named. The strategy "mirrored" has two replicas, on logical CPUs. Under
// "multi_worker_mirrored" each worker of TF_CONFIG is a process of this program. "learn" has
// callbacks whose decisions depend on what they have seen. It writes the last weights to
// FOLDER/last.safetensors, the best ones to FOLDER/best.safetensors and the history to
// FOLDER/history.json. "count" has weights that count the steps, and the steps that have used each
// example, of which there are enough for STEPS steps in an epoch. Both begin the last epoch once
// the file FOLDER/last_epoch exists, so that a run does not end before all kills. They print:
//
//   client PID     the process has begun
//   fit            fit() has begun, and a checkpoint was restored if there was one
//   used each example LEAST to MOST times in STEPS steps; fit() counts STEPS
//   done           everything is written
//   error CODE: text
#include <ATen/Parallel.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "trireme/cluster/flags.h"
#include "trireme/distribute/strategy.h"
#include "trireme/exec/random.h"
#include "trireme/metric/metric.h"
#include "trireme/model/backup_and_restore.h"
#include "trireme/model/model.h"
#include "trireme/model/model_checkpoint.h"
#include "trireme/testing/wait_until.h"

namespace tr = trireme;
using torch::Tensor;

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(8, 32));
    dropout = register_module("dropout", torch::nn::Dropout(0.2));
    last = register_module("last", torch::nn::Linear(32, 4));
  }
  Tensor forward(const Tensor& x) { return last(dropout(torch::relu(first(x)))); }

  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Net);

// Reduces the rate after each third epoch that is not the best so far.
class ReduceRate : public tr::Callback {
 public:
  void on_epoch_end(tr::Fit& fit, tr::Logs& logs) override {
    const double loss = logs["val_loss"];
    if (loss < best_) {
      best_ = loss;
    } else if (++worse_ % 3 == 0) {
      fit.set_lr(fit.lr() * 0.9);
    }
    logs.set("lr", fit.lr());
    logs.set("worse", worse_);
  }
  std::string save() const override {
    char text[64];
    std::snprintf(text, sizeof text, "%a %d", best_, worse_);
    return text;
  }
  void restore(const std::string& state) override {
    if (std::sscanf(state.c_str(), "%la %d", &best_, &worse_) != 2) std::abort();
  }

 private:
  double best_ = 1e9;
  int worse_ = 0;
};

// The weights of a net that counts its steps and its examples.
struct CountersImpl : torch::nn::Module {
  explicit CountersImpl(int64_t examples)
      : uses(register_parameter("uses", torch::zeros({examples}))),
        steps(register_parameter("steps", torch::zeros({1}))) {}
  Tensor forward(const Tensor& numbers) {
    return torch::cat({uses.index_select(0, numbers), steps});
  }

  Tensor uses, steps;
};
TORCH_MODULE(Counters);

struct Arguments {
  std::string mode, folder;
  int64_t epochs, steps;
  int steps_per_execution;
};

// Returns the options of both fits, with these callbacks before those that both have.
tr::FitOptions fit_options(const Arguments& arguments, std::vector<tr::AnyCallback> callbacks) {
  const std::string& folder = arguments.folder;
  callbacks.push_back(
      tr::BackupAndRestore(folder + "/backup", {.save_freq = arguments.steps * 2 / 5}));
  callbacks.push_back(tr::on_train_begin([](tr::Fit&) { std::puts("fit"); }));
  callbacks.push_back(tr::on_epoch_begin([folder](tr::Fit& fit) {
    if (fit.epoch() + 1 < fit.epochs()) return;
    const auto exists = [&] { return std::filesystem::exists(folder + "/last_epoch"); };
    if (!tr::wait_until(exists, std::chrono::minutes(5))) std::abort();
  }));
  return {.epochs = arguments.epochs,
          .callbacks = std::move(callbacks),
          .verbose = tr::Verbose::kSilent};
}

void learn(const Arguments& arguments, const tr::Strategy& strategy) {
  const std::string& folder = arguments.folder;
  const Tensor x = torch::rand({1000, 8});
  const Tensor y = (x.sum(1) - 2).clamp(0, 3).to(torch::kLong);
  tr::Model model(Net(), strategy);
  model.compile({.optimizer = tr::Adam({.lr = 0.003}),
                 .loss = torch::nn::CrossEntropyLoss(),
                 .metrics = {tr::Accuracy()},
                 .steps_per_execution = arguments.steps_per_execution});
  tr::FitOptions options = fit_options(
      arguments,
      {ReduceRate(), tr::ModelCheckpoint(folder + "/best.safetensors", {.save_best_only = true})});
  options.steps_per_epoch = arguments.steps;
  options.validation = std::pair(x, y);
  const tr::History history =
      model.fit(tr::Dataset::from_tensors({x, y}).shuffle(1000).repeat().batch(20), options);
  model.save(folder + "/last.safetensors");
  std::ofstream(folder + "/history.json") << history.to_json();
}

// The loss falls by 1 with each counter that a step uses, so that with the rate 1 the step adds 1
// to it.
void count(const Arguments& arguments, const tr::Strategy& strategy) {
  constexpr int64_t kBatch = 16;
  const int64_t examples = kBatch * arguments.steps;
  const Tensor numbers = torch::arange(examples);
  tr::Model model(Counters(examples), strategy);
  model.compile({.optimizer = tr::Sgd({.lr = 1}),
                 .loss = [](const Tensor& counters, const Tensor&) { return -counters.sum(); },
                 .steps_per_execution = arguments.steps_per_execution});
  int64_t steps = 0;
  tr::FitOptions options = fit_options(
      arguments, {tr::on_train_end([&](tr::Fit& fit, const tr::Logs&) { steps = fit.step(); })});
  options.batch_size = kBatch;
  model.fit(numbers, numbers, options);
  Counters last(examples);
  strategy.pull(model.net(), last);
  std::printf("used each example %.0f to %.0f times in %.0f steps; fit() counts %ld\n",
              last->uses.min().item<double>(), last->uses.max().item<double>(),
              last->steps.item<double>(), static_cast<long>(steps));
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("client %d\n", getpid());
  at::set_num_threads(1);
  try {
    const tr::Flags flags(argc, argv);
    const std::vector<std::string>& rest = flags.rest();
    if (rest.size() != 5) return 2;
    const Arguments arguments{rest[0], rest[1], std::stol(rest[2]), std::stol(rest[3]),
                              std::stoi(rest[4])};
    torch::manual_seed(1);
    tr::set_seed(7);
    const tr::Strategy strategy = tr::make_strategy(
        tr::resolve(flags), flags.strategy(), {.mirrored = {.devices = {"/cpu:0", "/cpu:1"}}});
    arguments.mode == "learn" ? learn(arguments, strategy) : count(arguments, strategy);
    std::puts("done");
  } catch (const tr::Error& error) {
    std::printf("error %s: %s\n", tr::error_code_name(error.code()), error.what());
    return 1;
  }
}
