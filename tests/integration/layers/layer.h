#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// The layers of torch::nn that layers_test.cc compares with eager code. The sources *_layers.cc
// list them by family.
namespace trireme {

// A layer and the inputs of its forward().
struct Layer {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<torch::Tensor> inputs;
  // Calls forward() with tensors like `inputs` and returns the tensors of its result.
  std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)> forward;
};

// Calls forward() of a layer with one, two or three tensors. It returns one tensor.
inline constexpr auto kOne = [](auto& layer, const std::vector<torch::Tensor>& x) {
  return std::vector<torch::Tensor>{layer->forward(x[0])};
};
inline constexpr auto kTwo = [](auto& layer, const std::vector<torch::Tensor>& x) {
  return std::vector<torch::Tensor>{layer->forward(x[0], x[1])};
};
inline constexpr auto kThree = [](auto& layer, const std::vector<torch::Tensor>& x) {
  return std::vector<torch::Tensor>{layer->forward(x[0], x[1], x[2])};
};

// Layers of one kind, which share a table in docs/layers.md.
class LayerFamily {
 public:
  // The name of a layer, with options in parentheses if there are several rows of it, and how it is
  // made.
  struct Entry {
    std::string name;
    std::function<Layer()> make;
  };

  explicit LayerFamily(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  const std::vector<Entry>& entries() const { return entries_; }

  // Adds the layer Holder(options...).
  template <typename Holder, typename Forward, typename... Options>
  void add(std::string name, Forward forward, std::vector<torch::Tensor> inputs,
           Options... options) {
    entries_.push_back({std::move(name), [=] {
                          Holder layer(options...);
                          const auto call = [=](const std::vector<torch::Tensor>& x) mutable {
                            return forward(layer, x);
                          };
                          return Layer{layer.ptr(), inputs, call};
                        }});
  }

 private:
  std::string name_;
  std::vector<Entry> entries_;
};

LayerFamily linear_layers();
LayerFamily convolution_layers();
LayerFamily recurrent_layers();
LayerFamily attention_layers();
LayerFamily normalization_layers();
LayerFamily activation_layers();
LayerFamily dropout_layers();
LayerFamily pooling_layers();
LayerFamily padding_layers();
LayerFamily loss_layers();

}  // namespace trireme
