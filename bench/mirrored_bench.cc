// Trains a net of 25 million parameters in one process, for bench/compare.
//
//   mirrored_bench mirrored|plain [WIDTH]
//
// With "mirrored" the step runs in two replicas on two logical CPU devices, each of which has half
// of the batch; with "plain", operators use two threads. Executes each line of its input and
// answers with the line "done" and a JSON object: the steps, the seconds, and the loss of the last
// step if it trains.
//
//   step BATCH STEPS        trains on batches of this size, an even number: half for each replica
//   products BATCH STEPS    computes only the matrix products of such steps, with LibTorch alone
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <barrier>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
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

// The matrix products of a step, for some rows of its batch: of all layers forward, then backward.
class Products {
 public:
  // With `adds`, the gradients of weights are added to those of the step before, as the second
  // replica of a mirrored step adds its own to those of the first.
  Products(const std::vector<Tensor>& weights, int64_t rows, bool adds)
      : weights_(weights), adds_(adds) {
    for (const Tensor& weight : weights) {
      inputs_.push_back(torch::randn({rows, weight.size(1)}));
      outputs_.push_back(torch::empty({rows, weight.size(0)}));
      input_gradients_.push_back(torch::empty_like(inputs_.back()));
      output_gradients_.push_back(torch::randn_like(outputs_.back()));
      weight_gradients_.push_back(torch::zeros_like(weight));
    }
  }

  void run() {
    for (size_t i = 0; i < weights_.size(); ++i) {
      at::mm_out(outputs_[i], inputs_[i], weights_[i].t());
    }
    for (size_t i = weights_.size(); i-- > 0;) {
      const Tensor& gradient = output_gradients_[i];
      if (adds_) {
        weight_gradients_[i].addmm_(gradient.t(), inputs_[i]);
      } else {
        at::mm_out(weight_gradients_[i], gradient.t(), inputs_[i]);
      }
      if (i > 0) at::mm_out(input_gradients_[i], gradient, weights_[i]);
    }
  }

 private:
  std::vector<Tensor> weights_, inputs_, outputs_;
  std::vector<Tensor> input_gradients_, output_gradients_, weight_gradients_;
  bool adds_;
};

// Returns the products of both replicas, or those of one process. The weights are shared.
std::vector<Products> make_products(const std::string& kind, int64_t size, int64_t width) {
  std::vector<Tensor> weights;
  for (const auto& [in, out] : {std::pair(width / 3, width), std::pair(width, width),
                                std::pair(width, width), std::pair(width, width / 3)}) {
    weights.push_back(torch::randn({out, in}));
  }
  if (kind == "plain") return {Products(weights, size, /*adds=*/false)};
  return {Products(weights, size / 2, /*adds=*/false), Products(weights, size / 2, /*adds=*/true)};
}

// Each replica has a thread, whose operators use no others, and waits for the other at the end of
// each step. One process uses this thread, as the captured step does.
void multiply(std::vector<Products>& replicas, int64_t steps) {
  if (replicas.size() == 1) {
    for (int64_t i = 0; i < steps; ++i) replicas[0].run();
    return;
  }
  std::barrier step_end(static_cast<std::ptrdiff_t>(replicas.size()));
  std::vector<std::jthread> threads;
  for (Products& replica : replicas) {
    threads.emplace_back([&] {
      at::set_num_threads(1);
      for (int64_t i = 0; i < steps; ++i) {
        replica.run();
        step_end.arrive_and_wait();
      }
    });
  }
}

std::unique_ptr<Training> make_training(const std::string& kind, int64_t width) {
  if (kind == "mirrored") return std::make_unique<Mirrored>(width);
  return std::make_unique<Plain>(width);
}

template <typename Fn>
double seconds_of(const Fn& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int run(const std::string& kind, int64_t width) {
  at::set_num_threads(kThreads);
  std::unique_ptr<Training> training;                 // null before the first step
  std::map<int64_t, Batch> batches;                   // by their size
  std::map<int64_t, std::vector<Products>> products;  // by the size of the batch
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::string name;
    int64_t size = 0, steps = 0;
    std::istringstream(line) >> name >> size >> steps;
    if ((name != "step" && name != "products") || size < 2 || size % 2 != 0 || steps < 1) {
      throw std::invalid_argument("there is no command '" + line + "'");
    }
    std::printf("done {\"steps\": %ld", static_cast<long>(steps));
    if (name == "step") {
      if (!training) training = make_training(kind, width);
      Batch& batch = batches[size];
      if (!batch.first.defined()) batch = make_batch(size, width);
      double loss = 0;
      const double seconds = seconds_of([&] {
        for (int64_t i = 0; i < steps; ++i) loss = training->step(batch).item<double>();
      });
      std::printf(", \"seconds\": %.6f, \"loss\": %.6f}\n", seconds, loss);
    } else {
      std::vector<Products>& replicas = products[size];
      if (replicas.empty()) replicas = make_products(kind, size, width);
      const double seconds = seconds_of([&] { multiply(replicas, steps); });
      std::printf(", \"seconds\": %.6f}\n", seconds);
    }
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
