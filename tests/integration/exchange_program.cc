// The C++ side of exchange_test.py: a ResNet-18 with the names of torchvision's, which reads and
// writes state dicts, and a program that saves a checkpoint of a small job.
//
// usage: exchange_program load WEIGHTS INPUTS OUTPUTS     runs the net with weights from a file
//        exchange_program save SEED WEIGHTS INPUTS OUTPUTS    writes new weights, and runs the net
//        exchange_program checkpoint DIR WEIGHTS      trains on two servers, saves there, and
//                                                     writes the state dict of the net
//
// INPUTS has a tensor "x". OUTPUTS gets the outputs in evaluation mode, "evaluated", and the ones
// in training mode, "trained".
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "trireme/trireme.h"

namespace tr = trireme;
using torch::Tensor;

namespace {

torch::nn::Conv2d convolution(int in, int out, int size, int stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

struct BlockImpl : torch::nn::Module {
  BlockImpl(int in, int out, int stride)
      : conv1(register_module("conv1", convolution(in, out, 3, stride))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(out))),
        conv2(register_module("conv2", convolution(out, out, 3, 1))),
        bn2(register_module("bn2", torch::nn::BatchNorm2d(out))) {
    if (stride == 1 && in == out) return;
    downsample = register_module(
        "downsample",
        torch::nn::Sequential(convolution(in, out, 1, stride), torch::nn::BatchNorm2d(out)));
  }

  Tensor forward(const Tensor& x) {
    Tensor y = torch::relu(bn1(conv1(x)));
    y = bn2(conv2(y));
    return torch::relu(y + (downsample.is_empty() ? x : downsample->forward(x)));
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d bn2;
  torch::nn::Sequential downsample{nullptr};
};
TORCH_MODULE(Block);

struct ResNet18Impl : torch::nn::Module {
  explicit ResNet18Impl(int classes = 1000)
      : conv1(register_module(
            "conv1", torch::nn::Conv2d(
                         torch::nn::Conv2dOptions(3, 64, 7).stride(2).padding(3).bias(false)))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(64))) {
    const int widths[] = {64, 64, 128, 256, 512};
    for (int i = 0; i < 4; ++i) {
      const int stride = i == 0 ? 1 : 2;
      layers.push_back(
          register_module("layer" + std::to_string(i + 1),
                          torch::nn::Sequential(Block(widths[i], widths[i + 1], stride),
                                                Block(widths[i + 1], widths[i + 1], 1))));
    }
    fc = register_module("fc", torch::nn::Linear(512, classes));
  }

  Tensor forward(const Tensor& x) {
    Tensor y = torch::max_pool2d(torch::relu(bn1(conv1(x))), 3, 2, 1);
    for (auto& layer : layers) y = layer->forward(y);
    return fc(torch::flatten(torch::adaptive_avg_pool2d(y, {1, 1}), 1));
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  std::vector<torch::nn::Sequential> layers;
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(ResNet18);

// Tensors under names of their own, which a state dict reads and writes.
struct Tensors : torch::nn::Module {
  Tensor& add(const std::string& name, const Tensor& value) { return register_buffer(name, value); }
};

// Runs the net on the tensor "x" of a file, and writes the outputs to another file.
void run_net(ResNet18& net, const std::string& inputs, const std::string& outputs) {
  const torch::NoGradGuard no_gradients;
  Tensors given, made;
  const Tensor x = given.add("x", torch::zeros({2, 3, 64, 64}));
  tr::load_state_dict(given, inputs);
  net->eval();
  made.add("evaluated", net->forward(x));
  net->train();
  made.add("trained", net->forward(x));
  tr::save_state_dict(made, outputs);
}

struct Small : torch::nn::Module {
  Small() {
    register_module("embed", embed);
    register_module("norm", norm);
    register_module("last", last);
  }
  Tensor forward(const Tensor& ids) { return last(norm(embed(ids))); }
  torch::nn::Embedding embed{10, 6};
  torch::nn::BatchNorm1d norm{6};
  torch::nn::Linear last{6, 3};
};

// Trains a small net on two servers, with variables in shards, and saves a checkpoint of it and of
// a variable in the program.
void save_checkpoint(const std::string& folder, const std::string& weights) {
  tr::InProcessCluster cluster({.workers = 0, .ps = 2});
  tr::Variable count("count", torch::zeros({}, torch::kLong));
  tr::ParameterServerStrategy strategy(cluster.resolver(),
                                       {.partitioner = tr::FixedPartitioner(2)});
  auto net = strategy.distribute<Small>();
  tr::Adam optimizer(net, {.lr = 0.01});
  const auto step = tr::function("step", [&](const Tensor& ids) {
    const Tensor loss = net->forward(ids).pow(2).mean();
    optimizer.minimize(loss);
    return loss;
  });
  for (int i = 0; i < 5; ++i) {
    step(torch::randint(10, {16}));
    count.assign_add(torch::ones({}, torch::kLong));
  }
  tr::CheckpointManager manager(folder, {net, optimizer, count});
  manager.save(5);
  manager.wait();
  tr::save_state_dict(net, weights);
}

int run(const std::vector<std::string>& words) {
  const std::string command = words.empty() ? "" : words[0];
  if (command == "load" && words.size() == 4) {
    ResNet18 net;
    tr::load_state_dict(net, words[1]);
    run_net(net, words[2], words[3]);
  } else if (command == "save" && words.size() == 5) {
    torch::manual_seed(std::stoi(words[1]));
    ResNet18 net;
    net->forward(torch::randn({4, 3, 64, 64}));  // Gives the statistics of batch norm values.
    tr::save_state_dict(net, words[2]);
    run_net(net, words[3], words[4]);
  } else if (command == "checkpoint" && words.size() == 3) {
    save_checkpoint(words[1], words[2]);
  } else {
    std::fputs("see the usage at the top of exchange_program.cc\n", stderr);
    return 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
