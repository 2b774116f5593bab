// Trains a net together with other processes, for bench/compare.
//
//   ddp_bench RANK ADDRESS ADDRESS...
//
// Is one worker of a MultiWorkerMirroredStrategy, with one thread. Executes each line of its input
// and answers with the line "done" and a JSON object.
//
//   step mlp|resnet BATCH STEPS    trains on batches of this size on each worker: the steps, the
//                                  seconds, and the loss of the last step of this worker
//   trace mlp|resnet BATCH STEPS   trains and traces each step: the median share of communication
//                                  that was hidden behind compute
#include <ATen/Parallel.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "trireme/trireme.h"

namespace trireme::bench {
namespace {

using torch::Tensor;
namespace nn = torch::nn;

constexpr double kRate = 0.01;

// Layers of 1024, 3072, 3072, 3072 and 1024 units: 25.2 million parameters.
nn::Sequential make_mlp() {
  return nn::Sequential(nn::Linear(1024, 3072), nn::ReLU(), nn::Linear(3072, 3072), nn::ReLU(),
                        nn::Linear(3072, 3072), nn::ReLU(), nn::Linear(3072, 1024));
}

// A convolution and a batch norm.
struct ConvolutionImpl : nn::Module {
  ConvolutionImpl(int64_t in, int64_t out, int64_t kernel, int64_t stride)
      : conv(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false)),
        norm(out) {
    register_module("conv", conv);
    register_module("norm", norm);
  }
  Tensor forward(const Tensor& x) { return norm(conv(x)); }
  nn::Conv2d conv;
  nn::BatchNorm2d norm;
};
TORCH_MODULE(Convolution);

// A block of three convolutions beside a shortcut.
struct BottleneckImpl : nn::Module {
  BottleneckImpl(int64_t in, int64_t width, int64_t stride)
      : first(in, width, 1, 1), second(width, width, 3, stride), third(width, 4 * width, 1, 1) {
    register_module("first", first);
    register_module("second", second);
    register_module("third", third);
    if (stride != 1 || in != 4 * width) {
      shortcut = register_module("shortcut", Convolution(in, 4 * width, 1, stride));
    }
  }
  Tensor forward(const Tensor& x) {
    const Tensor inner = torch::relu(second->forward(torch::relu(first->forward(x))));
    return torch::relu(third->forward(inner) + (shortcut ? shortcut->forward(x) : x));
  }
  Convolution first, second, third, shortcut{nullptr};
};
TORCH_MODULE(Bottleneck);

// The layers of a ResNet-50 with 1000 classes: 25.6 million parameters.
nn::Sequential make_resnet() {
  nn::Sequential net(Convolution(3, 64, 7, 2), nn::ReLU(),
                     nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)));
  int64_t in = 64;
  const std::vector<int> blocks{3, 4, 6, 3};
  for (size_t stage = 0; stage < blocks.size(); ++stage) {
    const int64_t width = int64_t{64} << stage;
    for (int i = 0; i < blocks[stage]; ++i) {
      net->push_back(Bottleneck(in, width, stage > 0 && i == 0 ? 2 : 1));
      in = 4 * width;
    }
  }
  net->push_back(nn::AdaptiveAvgPool2d(nn::AdaptiveAvgPool2dOptions({1, 1})));
  net->push_back(nn::Flatten());
  net->push_back(nn::Linear(in, 1000));
  return net;
}

// A net that is trained on the same batch in every step.
class DdpTraining {
 public:
  DdpTraining(const Strategy& strategy, const std::string& name, int64_t batch, int rank)
      : strategy_(strategy), scope_(strategy.scope()) {
    torch::manual_seed(1);
    net_ = strategy.distribute(name == "mlp" ? make_mlp() : make_resnet());
    optimizer_.emplace(net_, SgdOptions{.lr = kRate});
    torch::manual_seed(2 + rank);
    x_ = name == "mlp" ? torch::randn({batch, 1024}) : torch::randn({batch, 3, 112, 112});
    y_ = name == "mlp" ? torch::randn({batch, 1024}) : torch::randn({batch, 1000});
  }

  double step() { return step_(x_, y_).item<double>(); }

  // Makes a traced step, and returns the share of its communication that was hidden behind compute.
  double hidden_share() {
    const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                       ("ddp_bench_" + std::to_string(getpid()) + ".json");
    step_.run({.trace_file = path.string()}, x_, y_);
    const nlohmann::json trace = nlohmann::json::parse(std::ifstream(path));
    std::filesystem::remove(path);
    for (const nlohmann::json& event : trace["traceEvents"]) {
      if (event["name"] == "hidden_communication") return event["args"]["share"];
    }
    throw std::runtime_error("the trace of a step has no communication");
  }

 private:
  Strategy strategy_;
  StrategyScope scope_;
  nn::Sequential net_{nullptr};
  std::optional<Sgd> optimizer_;
  Tensor x_, y_;
  Function<Tensor(const Tensor&, const Tensor&)> step_ =
      function("ddp", [this](const Tensor& x, const Tensor& y) {
        const auto replica = [&](const Tensor& inputs, const Tensor& targets) {
          const Tensor loss = torch::mse_loss(net_->forward(inputs), targets);
          optimizer_->minimize(loss / strategy_.num_replicas_in_sync());
          return loss;
        };
        return strategy_.run(replica, x, y)[0];
      });
};

nlohmann::json measure_steps(DdpTraining& training, int64_t steps) {
  double loss = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < steps; ++i) loss = training.step();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return {{"steps", steps}, {"seconds", seconds.count()}, {"loss", loss}};
}

nlohmann::json measure_hidden(DdpTraining& training, int64_t steps) {
  std::vector<double> shares;
  for (int64_t i = 0; i < steps; ++i) shares.push_back(training.hidden_share());
  std::ranges::sort(shares);
  return {{"hidden", shares[shares.size() / 2]}};
}

int run(int rank, const std::vector<std::string>& addresses) {
  at::set_num_threads(1);
  const MultiWorkerMirroredStrategy strategy(
      Cluster(ClusterSpec{{"worker", addresses}}, TaskId{"worker", rank}));
  std::map<std::string, std::unique_ptr<DdpTraining>> trainings;
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::string command, name;
    int64_t batch = 0, steps = 0;
    std::istringstream(line) >> command >> name >> batch >> steps;
    if ((command != "step" && command != "trace") || (name != "mlp" && name != "resnet") ||
        batch < 1 || steps < 1) {
      throw std::invalid_argument("there is no command '" + line + "'");
    }
    auto& training = trainings[name + std::to_string(batch)];
    if (!training) training = std::make_unique<DdpTraining>(strategy, name, batch, rank);
    const nlohmann::json report =
        command == "step" ? measure_steps(*training, steps) : measure_hidden(*training, steps);
    std::printf("done %s\n", report.dump().c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: ddp_bench RANK ADDRESS ADDRESS...\n");
    return 2;
  }
  try {
    return trireme::bench::run(std::stoi(argv[1]), std::vector<std::string>(argv + 2, argv + argc));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ddp_bench: %s\n", error.what());
    return 1;
  }
}
