#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

// The models of which these tests and bench/graph_bench.cc capture training steps.
namespace trireme::models {

using torch::Tensor;

struct Batch {
  Tensor x, y;
};

// Called at the beginning of each stage of a model's forward pass. The returned object lives until
// the end of the stage; tests return a device scope.
using OnStage = std::function<std::shared_ptr<void>(int stage)>;

// A module, its loss, and its batches. The same name and dtype always give the same weights.
struct Model {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensor(const Tensor&, const Tensor&)> loss;
  std::function<Batch(int)> batch;
  // The conv net has 4 stages and the transformer layer has 3. `stage_of` maps the name of a module
  // to its stage.
  int stages = 1;
  std::function<int(const std::string&)> stage_of;
};

// Makes the model "mlp", "mlp_512", "conv", "transformer", "towers", "lstm" or "embedding_bag". If
// `small` is true, the conv net has fewer channels, for tests that run often.
Model make_model(const std::string& name, torch::Dtype dtype = torch::kFloat, bool small = false,
                 const OnStage& on_stage = {});

}  // namespace trireme::models
