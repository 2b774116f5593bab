#include "tests/integration/graph/models.h"

#include <torch/torch.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace trireme::models {
namespace {

namespace nn = torch::nn;

Batch seeded(int step, const std::function<Batch(torch::Generator&)>& make) {
  torch::Generator generator = at::detail::createCPUGenerator(1000 + step);
  return make(generator);
}

struct Mlp : nn::Module {
  Mlp(int64_t width, int64_t classes) {
    for (int i = 0; i < 3; ++i) {
      layers->push_back(nn::Linear(width, i == 2 ? classes : width));
      if (i < 2) layers->push_back(nn::ReLU());
    }
    register_module("layers", layers);
  }
  Tensor forward(const Tensor& x) { return layers->forward(x); }
  nn::Sequential layers;
};

std::shared_ptr<void> enter(const OnStage& on_stage, int stage) {
  return on_stage ? on_stage(stage) : nullptr;
}

nn::Conv2d conv3(int64_t in, int64_t out, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false));
}

struct Residual : nn::Module {
  Residual(int64_t in, int64_t out, int64_t stride) {
    conv1 = register_module("conv1", conv3(in, out, stride));
    norm1 = register_module("norm1", nn::BatchNorm2d(out));
    conv2 = register_module("conv2", conv3(out, out, 1));
    norm2 = register_module("norm2", nn::BatchNorm2d(out));
    if (stride != 1 || in != out) {
      shortcut = register_module(
          "shortcut",
          nn::Sequential(nn::Conv2d(nn::Conv2dOptions(in, out, 1).stride(stride).bias(false)),
                         nn::BatchNorm2d(out)));
    }
  }
  Tensor forward(const Tensor& x) {
    Tensor y = torch::relu(norm1(conv1(x)));
    y = norm2(conv2(y));
    return torch::relu_(y.add_(shortcut.is_empty() ? x : shortcut->forward(x)));
  }
  nn::Conv2d conv1{nullptr}, conv2{nullptr};
  nn::BatchNorm2d norm1{nullptr}, norm2{nullptr};
  nn::Sequential shortcut{nullptr};
};

// A net of the shape of ResNet-18, with 11.2 million parameters at 64 channels.
struct ConvNet : nn::Module {
  static constexpr int kStages = 4;

  ConvNet(int64_t channels, OnStage on_stage) : on_stage(std::move(on_stage)) {
    blocks->push_back(conv3(3, channels, 1));
    blocks->push_back(nn::BatchNorm2d(channels));
    blocks->push_back(nn::ReLU());
    int64_t in = channels;
    for (int stage = 0; stage < kStages; ++stage) {
      const int64_t out = channels << stage;
      for (int i = 0; i < 2; ++i) {
        blocks->push_back(std::make_shared<Residual>(in, out, stage > 0 && i == 0 ? 2 : 1));
        in = out;
      }
    }
    register_module("blocks", blocks);
    head = register_module("head", nn::Linear(in, 10));
  }
  Tensor forward(const Tensor& x) {
    Tensor y = x;
    int number = 0;
    for (nn::AnyModule& block : *blocks) {
      const auto scope = enter(on_stage, stage_of_block(number++));
      y = block.forward(y);
    }
    const auto scope = enter(on_stage, kStages - 1);
    return head(torch::adaptive_avg_pool2d(y, {1, 1}).flatten(1));
  }
  // The stem belongs to the first stage. Each stage has two blocks.
  static int stage_of_block(int number) { return std::max(0, (number - 3) / 2); }
  static int stage_of(const std::string& module) {
    const std::string prefix = "blocks.";
    return module.starts_with(prefix) ? stage_of_block(std::stoi(module.substr(prefix.size())))
                                      : kStages - 1;
  }
  const OnStage on_stage;
  nn::Sequential blocks;
  nn::Linear head{nullptr};
};

struct EncoderLayer : nn::Module {
  static constexpr int kStages = 3;

  EncoderLayer(int64_t width, int64_t heads, OnStage on_stage) : on_stage(std::move(on_stage)) {
    attention = register_module(
        "attention",
        nn::MultiheadAttention(nn::MultiheadAttentionOptions(width, heads).dropout(0.1)));
    feed1 = register_module("feed1", nn::Linear(width, 4 * width));
    feed2 = register_module("feed2", nn::Linear(4 * width, width));
    norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})));
    norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})));
    dropout = register_module("dropout", nn::Dropout(0.1));
    head = register_module("head", nn::Linear(width, 10));
  }
  Tensor forward(const Tensor& x) {
    Tensor y, fed;
    {
      const auto scope = enter(on_stage, 0);
      y = norm1(x + dropout(std::get<0>(attention(x, x, x))));
    }
    {
      const auto scope = enter(on_stage, 1);
      fed = dropout(feed2(dropout(torch::gelu(feed1(y)))));
    }
    const auto scope = enter(on_stage, 2);
    return head(norm2(y + fed).mean(0));
  }
  static int stage_of(const std::string& module) {
    if (module.starts_with("attention") || module == "norm1") return 0;
    return module.starts_with("feed") ? 1 : 2;
  }
  const OnStage on_stage;
  nn::MultiheadAttention attention{nullptr};
  nn::Linear feed1{nullptr}, feed2{nullptr}, head{nullptr};
  nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  nn::Dropout dropout{nullptr};
};

struct Lstm : nn::Module {
  Lstm() {
    lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(16, 32).num_layers(2)));
    head = register_module("head", nn::Linear(32, 10));
  }
  Tensor forward(const Tensor& x) { return head(std::get<0>(lstm(x))[-1]); }
  nn::LSTM lstm{nullptr};
  nn::Linear head{nullptr};
};

struct Bags : nn::Module {
  Bags() {
    bags = register_module(
        "bags", nn::EmbeddingBag(nn::EmbeddingBagOptions(1000, 16).mode(torch::kSum).sparse(true)));
    head = register_module("head", nn::Linear(16, 10));
  }
  Tensor forward(const Tensor& x) { return head(bags(x)); }
  nn::EmbeddingBag bags{nullptr};
  nn::Linear head{nullptr};
};

// A net as in ranking: groups of features have small networks of their own, whose operators are too
// small to be worth several threads.
struct Towers : nn::Module {
  Towers() {
    for (int i = 0; i < kTowers; ++i) {
      nn::Sequential tower;
      for (int layer = 0; layer < 4; ++layer) {
        tower->push_back(nn::Linear(kWidth, kWidth));
        tower->push_back(nn::Tanh());
      }
      towers->push_back(tower);
    }
    register_module("towers", towers);
    head = register_module("head", nn::Linear(kTowers * kWidth, 10));
  }
  Tensor forward(const Tensor& x) {
    const std::vector<Tensor> groups = x.chunk(kTowers, 1);
    std::vector<Tensor> results;
    for (int i = 0; i < kTowers; ++i) {
      results.push_back(towers[i]->as<nn::Sequential>()->forward(groups[i]));
    }
    return head(torch::cat(results, 1));
  }
  static constexpr int kTowers = 8, kWidth = 64;
  nn::ModuleList towers;
  nn::Linear head{nullptr};
};

template <typename Net>
Model classifier(std::shared_ptr<Net> net, std::function<Batch(torch::Generator&)> make) {
  return {net,
          [net](const Tensor& x, const Tensor& y) {
            return torch::cross_entropy_loss(net->forward(x), y);
          },
          [make](int step) { return seeded(step, make); }};
}

}  // namespace

Model make_model(const std::string& name, torch::Dtype dtype, bool small, const OnStage& on_stage) {
  torch::manual_seed(7);
  const auto floats = [dtype](std::vector<int64_t> sizes) {
    return [dtype, sizes](torch::Generator& generator) {
      Tensor x = torch::randn(sizes, generator, torch::kDouble).to(dtype);
      const int64_t batch = sizes.size() == 3 ? sizes[1] : sizes[0];
      return Batch{x, torch::randint(0, 10, {batch}, generator, torch::kLong)};
    };
  };
  Model model;
  if (name == "mlp") {
    model = classifier(std::make_shared<Mlp>(64, 10), floats({32, 64}));
  } else if (name == "mlp_512") {
    model = classifier(std::make_shared<Mlp>(512, 10), floats({32, 512}));
  } else if (name == "conv") {
    model = classifier(std::make_shared<ConvNet>(small ? 8 : 64, on_stage),
                       floats({small ? 4 : 8, 3, small ? 16 : 32, small ? 16 : 32}));
    model.stages = ConvNet::kStages;
    model.stage_of = ConvNet::stage_of;
  } else if (name == "transformer") {
    model = classifier(std::make_shared<EncoderLayer>(small ? 32 : 256, 4, on_stage),
                       floats({small ? 6 : 32, small ? 4 : 16, small ? 32 : 256}));
    model.stages = EncoderLayer::kStages;
    model.stage_of = EncoderLayer::stage_of;
  } else if (name == "towers") {
    model = classifier(std::make_shared<Towers>(), floats({128, Towers::kTowers * Towers::kWidth}));
  } else if (name == "lstm") {
    model = classifier(std::make_shared<Lstm>(), floats({12, 8, 16}));
  } else if (name == "embedding_bag") {
    model = classifier(std::make_shared<Bags>(), [](torch::Generator& generator) {
      return Batch{torch::randint(0, 1000, {16, 5}, generator, torch::kLong),
                   torch::randint(0, 10, {16}, generator, torch::kLong)};
    });
  } else {
    throw std::invalid_argument("there is no model '" + name + "'");
  }
  model.module->to(dtype);
  model.module->train();
  return model;
}

}  // namespace trireme::models
