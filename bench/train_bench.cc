// Trains with Model::fit(), and with a loop by hand, for bench/compare.
//
//   train_bench [WORKERS PS]
//
// The arguments are comma-separated addresses of the tasks of a cluster. Executes each line of its
// input and answers with the line "done" and a JSON object: the steps, the seconds, and the loss of
// the last epoch.
//
//   fit STEPS EPOCHS                   trains one dense layer on the cluster
//   fit_callbacks STEPS EPOCHS FOLDER  does the same with a CSV log and TensorBoard in the folder
//   fit_local STEPS EPOCHS             trains the net of step_mlp in this process
//   loop STEPS EPOCHS                  does the same with a captured step in a loop by hand
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "trireme/trireme.h"

namespace trireme::bench {
namespace {

using torch::Tensor;
namespace nn = torch::nn;

// Equal to the constants of anchors/tf_keras_fit.py and anchors/keras_torch_fit.py.
constexpr int64_t kExamples = 1024, kInputs = 10, kOutputs = 10;
constexpr int64_t kWidth = 64, kClasses = 10, kBatch = 32;
constexpr int kStepsPerExecution = 10;

struct Command {
  std::string name;
  int64_t steps = 0, epochs = 0;
  std::string folder;
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> items;
  std::istringstream stream(list);
  for (std::string item; std::getline(stream, item, ',');) items.push_back(item);
  return items;
}

Dataset batches_of_a_worker(const InputContext&) {
  torch::manual_seed(1);
  const Tensor x = torch::randn({kExamples, kInputs});
  const Tensor y = x.matmul(torch::randn({kInputs, kOutputs}));
  return Dataset::from_tensors({x, y})
      .shuffle(kExamples)
      .repeat()
      .batch(kBatch, {.drop_remainder = true})
      .prefetch(2);
}

// One dense layer on the workers and parameter servers of a cluster.
class OnCluster {
 public:
  explicit OnCluster(const ClusterSpec& spec)
      : strategy_(SimpleResolver(spec)), model_(nn::Linear(kInputs, kOutputs), strategy_) {
    model_.compile({.optimizer = Sgd({.lr = 0.01}),
                    .loss = nn::MSELoss(),
                    .steps_per_execution = kStepsPerExecution});
  }

  double fit(const Command& command) {
    FitOptions options{
        .epochs = command.epochs, .steps_per_epoch = command.steps, .verbose = Verbose::kSilent};
    if (command.name == "fit_callbacks") {
      options.callbacks = {CsvLog(command.folder + "/log.csv"), TensorBoard(command.folder)};
    }
    return model_.fit(DatasetCreator(batches_of_a_worker), options)["loss"].back();
  }

 private:
  ParameterServerStrategy strategy_;
  Model<nn::Linear> model_;
};

nn::Sequential make_mlp() {
  torch::manual_seed(1);
  return nn::Sequential(nn::Linear(kWidth, kWidth), nn::ReLU(), nn::Linear(kWidth, kWidth),
                        nn::ReLU(), nn::Linear(kWidth, kClasses));
}

// The net of step_mlp in this process, trained by fit() and by hand.
class InThisProcess {
 public:
  InThisProcess() : model_(make_mlp()), net_(make_mlp()), optimizer_(net_, {.lr = 1e-4}) {
    model_.compile({.optimizer = Adam({.lr = 1e-4}), .loss = nn::CrossEntropyLoss()});
  }

  double fit(const Command& command) {
    const auto& [x, y] = examples(command.steps);
    return model_
        .fit(x, y,
             {.batch_size = kBatch, .epochs = command.epochs, .verbose = Verbose::kSilent})["loss"]
        .back();
  }

  double loop(const Command& command) {
    const auto& [x, y] = examples(command.steps);
    Iterator batches =
        Dataset::from_tensors({x, y}).shuffle(x.size(0)).repeat().batch(kBatch).iterator();
    double sum = 0;
    for (int64_t epoch = 0; epoch < command.epochs; ++epoch) {
      sum = 0;
      for (int64_t i = 0; i < command.steps; ++i) sum += step_(batches).item<double>();
    }
    return sum / static_cast<double>(command.steps);
  }

 private:
  const std::pair<Tensor, Tensor>& examples(int64_t steps) {
    auto& [x, y] = examples_[steps];
    if (!x.defined()) {
      x = torch::randn({steps * kBatch, kWidth});
      y = torch::randint(kClasses, {steps * kBatch}, torch::kInt64);
    }
    return examples_[steps];
  }

  Model<nn::Sequential> model_;
  nn::Sequential net_;
  Adam optimizer_;
  Function<Tensor(Iterator&)> step_ = function("loop", [this](Iterator& batches) {
    auto [x, y] = batches.next<2>();
    const Tensor loss = torch::cross_entropy_loss(net_->forward(x), y);
    optimizer_.minimize(loss);
    return loss;
  });
  std::map<int64_t, std::pair<Tensor, Tensor>> examples_;  // by the steps of an epoch
};

int run(const std::vector<std::string>& arguments) {
  at::set_num_threads(1);
  std::map<std::string, std::function<double(const Command&)>> commands;
  std::unique_ptr<OnCluster> cluster;
  std::unique_ptr<InThisProcess> local;
  if (arguments.empty()) {
    local = std::make_unique<InThisProcess>();
    commands["fit_local"] = [&](const Command& command) { return local->fit(command); };
    commands["loop"] = [&](const Command& command) { return local->loop(command); };
  } else {
    cluster = std::make_unique<OnCluster>(
        ClusterSpec{{"worker", split(arguments[0])}, {"ps", split(arguments[1])}});
    commands["fit"] = [&](const Command& command) { return cluster->fit(command); };
    commands["fit_callbacks"] = commands["fit"];
  }
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    Command command;
    std::istringstream(line) >> command.name >> command.steps >> command.epochs >> command.folder;
    const auto found = commands.find(command.name);
    if (found == commands.end()) {
      throw std::invalid_argument("there is no command '" + line + "'");
    }
    const auto start = std::chrono::steady_clock::now();
    const double loss = found->second(command);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("done {\"steps\": %ld, \"seconds\": %.6f, \"loss\": %.6f}\n",
                static_cast<long>(command.steps * command.epochs), seconds.count(), loss);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  if (argc != 1 && argc != 3) {
    std::fprintf(stderr, "usage: train_bench [WORKERS PS]\n");
    return 2;
  }
  try {
    return trireme::bench::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_bench: %s\n", error.what());
    return 1;
  }
}
