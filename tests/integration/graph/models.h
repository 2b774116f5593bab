#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

// The models that captured steps are shown with, in tests and in bench/graph_bench.cc.
namespace trireme::models {

using torch::Tensor;

struct Batch {
  Tensor x, y;
};

// A module, its loss, and batches for it. The same name and dtype give the same weights each time.
struct Model {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensor(const Tensor&, const Tensor&)> loss;
  std::function<Batch(int)> batch;
};

// "mlp", "mlp_512", "conv", "transformer", "towers", "lstm" or "embedding_bag"; with `small` the
// conv net has fewer channels, for tests that run often.
Model make_model(const std::string& name, torch::Dtype dtype = torch::kFloat, bool small = false);

}  // namespace trireme::models
