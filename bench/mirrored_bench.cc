// Trains a net of 25 million parameters in one process, for bench/compare.
//
//   mirrored_bench mirrored|plain [WIDTH]
//
// With "mirrored" the step runs in two replicas on two logical CPU devices, each of which has half
// of the batch; with "plain", operators use two threads. Executes each line of its input and
// answers with the line "done" and a JSON object: the steps, the seconds, and the loss of the last
// step.
//
//   step BATCH STEPS    trains on batches of this size, an even number: half for each replica
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

constexpr int kThreads = 2;
constexpr double kRate = 0.01;

using Batch = std::pair<Tensor, Tensor>;

// Layers of WIDTH/3, WIDTH, WIDTH, WIDTH and WIDTH/3 units: 25.2 million parameters with the width
// of 3072.
nn::Sequential make_net(int64_t width) {
  torch::manual_seed(1);
  return nn::Sequential(nn::Linear(width / 3, width), nn::ReLU(), nn::Linear(width, width),
                        nn::ReLU(), nn::Linear(width, width), nn::ReLU(),
                        nn::Linear(width, width / 3));
}

// Returns random inputs and targets, the same in every process.
Batch make_batch(int64_t size, int64_t width) {
  torch::manual_seed(2);
  const Tensor x = torch::randn({size, width / 3});
  return {x, torch::randn({size, width / 3})};
}

// A training that runs steps on batches.
class Training {
 public:
  virtual ~Training() = default;
  // Runs one step and returns the loss of the whole batch.
  virtual Tensor step(const Batch& batch) = 0;
};

class Plain final : public Training {
 public:
  explicit Plain(int64_t width) : net_(make_net(width)), optimizer_(net_, {.lr = kRate}) {}

  Tensor step(const Batch& batch) override { return step_(batch.first, batch.second); }

 private:
  nn::Sequential net_;
  Sgd optimizer_;
  Function<Tensor(const Tensor&, const Tensor&)> step_ =
      function("plain", [this](const Tensor& x, const Tensor& y) {
        const Tensor loss = torch::mse_loss(net_->forward(x), y);
        optimizer_.minimize(loss);
        return loss;
      });
};

class Mirrored final : public Training {
 public:
  explicit Mirrored(int64_t width)
      : strategy_({.devices = {"/cpu:0", "/cpu:1"}}),
        scope_(strategy_.scope()),
        net_(strategy_.distribute(make_net(width))),
        optimizer_(net_, {.lr = kRate}) {}

  Tensor step(const Batch& batch) override {
    return step_(parts(batch.first), parts(batch.second));
  }

 private:
  using Parts = PerReplica<Tensor>;

  Parts parts(const Tensor& whole) const {
    return Parts(whole.chunk(strategy_.num_replicas_in_sync()));
  }

  MirroredStrategy strategy_;
  StrategyScope scope_;
  nn::Sequential net_;
  Sgd optimizer_;
  Function<Tensor(const Parts&, const Parts&)> step_ =
      function("mirrored", [this](const Parts& xs, const Parts& ys) {
        const Parts losses = strategy_.run(
            [this](const Tensor& x, const Tensor& y) {
              const Tensor loss =
                  torch::mse_loss(net_->forward(x), y) / strategy_.num_replicas_in_sync();
              optimizer_.minimize(loss);
              return loss;
            },
            xs, ys);
        return strategy_.reduce(ReduceOp::kSum, losses);
      });
};

int run(const std::string& kind, int64_t width) {
  at::set_num_threads(kThreads);
  std::unique_ptr<Training> training;
  if (kind == "mirrored") {
    training = std::make_unique<Mirrored>(width);
  } else {
    training = std::make_unique<Plain>(width);
  }
  std::map<int64_t, Batch> batches;  // by their size
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::string name;
    int64_t size = 0, steps = 0;
    std::istringstream(line) >> name >> size >> steps;
    if (name != "step" || size < 2 || size % 2 != 0 || steps < 1) {
      throw std::invalid_argument("there is no command '" + line + "'");
    }
    Batch& batch = batches[size];
    if (!batch.first.defined()) batch = make_batch(size, width);
    double loss = 0;
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < steps; ++i) loss = training->step(batch).item<double>();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("done {\"steps\": %ld, \"seconds\": %.6f, \"loss\": %.6f}\n",
                static_cast<long>(steps), seconds.count(), loss);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  const std::string kind = argc > 1 ? argv[1] : "";
  if (argc > 3 || (kind != "mirrored" && kind != "plain")) {
    std::fprintf(stderr, "usage: mirrored_bench mirrored|plain [WIDTH]\n");
    return 2;
  }
  try {
    return trireme::bench::run(kind, argc > 2 ? std::stoll(argv[2]) : 3072);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mirrored_bench: %s\n", error.what());
    return 1;
  }
}
