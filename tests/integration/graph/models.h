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

// Called at the beginning of a stage of a model's forward; what it returns lives as long as the
// stage. It is where a test puts a device scope.
using OnStage = std::function<std::shared_ptr<void>(int stage)>;

// A module, its loss, and batches for it. The same name and dtype give the same weights each time.
struct Model {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensor(const Tensor&, const Tensor&)> loss;
  std::function<Batch(int)> batch;
  // The conv net has 4 stages, the transformer layer 3: to which a module's name belongs.
  int stages = 1;
  std::function<int(const std::string&)> stage_of;
};

// "mlp", "mlp_512", "conv", "transformer", "towers", "lstm" or "embedding_bag"; with `small` the
// conv net has fewer channels, for tests that run often.
Model make_model(const std::string& name, torch::Dtype dtype = torch::kFloat, bool small = false,
                 const OnStage& on_stage = {});

}  // namespace trireme::models
