#pragma once

#include <torch/torch.h>
#include <trireme/trireme.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

// A custom training loop: a net learns from the cargo of ships which of them are warships.

// Maps strings to numbers, and strings that are not in the vocabulary to 0.
class Vocabulary {
 public:
  explicit Vocabulary(const std::vector<std::string>& words) {
    for (const std::string& word : words) numbers_.emplace(word, numbers_.size() + 1);
  }
  int64_t operator()(const std::string& word) const {
    const auto found = numbers_.find(word);
    return found == numbers_.end() ? 0 : found->second;
  }
  int64_t size() const { return static_cast<int64_t>(numbers_.size()) + 1; }

 private:
  std::map<std::string, int64_t> numbers_;
};

inline const std::vector<std::string> kCargo = {"ram",     "oar",   "sail",  "anchor",
                                                "amphora", "grain", "rudder"};

// Returns the cargo of random ships, three things each, and 1 for each warship. A ship with a ram
// is a warship.
inline std::pair<torch::Tensor, torch::Tensor> ships(int64_t count, unsigned seed) {
  const Vocabulary vocabulary(kCargo);
  std::mt19937 random(seed);
  torch::Tensor cargo = torch::zeros({count, 3}, torch::kInt64);
  torch::Tensor of_war = torch::zeros({count});
  for (int64_t ship = 0; ship < count; ++ship) {
    std::vector<std::string> things;
    std::sample(kCargo.begin(), kCargo.end(), std::back_inserter(things), 3, random);
    for (int64_t i = 0; i < 3; ++i) cargo.index_put_({ship, i}, vocabulary(things[i]));
    if (std::find(things.begin(), things.end(), "ram") != things.end()) {
      of_war.index_put_({ship}, 1.0);
    }
  }
  return {cargo, of_war};
}

struct ShipNetImpl : torch::nn::Module {
  ShipNetImpl() {
    register_module("things", things);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& cargo) {
    return out->forward(things->forward(cargo).mean(1)).squeeze(1);
  }
  torch::nn::Embedding things{Vocabulary(kCargo).size(), 8};
  torch::nn::Linear out{8, 1};
};
TORCH_MODULE(ShipNet);

inline void train(const trireme::Cluster& cluster, const std::string& certs = "") {
  namespace tr = trireme;
  torch::manual_seed(1);
  tr::ParameterServerStrategy strategy(
      cluster, {.partitioner = tr::MinSizePartitioner(256 << 10, 2), .certs = certs});
  tr::ClusterCoordinator coordinator(strategy);
  auto net = strategy.distribute<ShipNet>();
  auto scope = strategy.scope();
  tr::RmsProp optimizer(net, {.lr = 0.1, .alpha = 0.9});
  tr::Variable right("right", torch::zeros({})), seen("seen", torch::zeros({}));

  // Each worker has its own ships.
  auto data = coordinator.create_per_worker_dataset([](const tr::InputContext& context) {
    auto [cargo, of_war] = ships(200, context.input_pipeline_id);
    return tr::Dataset::from_tensors({cargo, of_war}).shuffle(200).repeat().batch(32);
  });
  auto step = tr::function("train", [&](tr::Iterator& batches) {
    auto [cargo, of_war] = batches.next<2>();
    torch::Tensor logits = net->forward(cargo);
    torch::Tensor loss = torch::binary_cross_entropy_with_logits(logits, of_war);
    optimizer.minimize(loss);
    right.assign_add((logits > 0).eq(of_war > 0.5).to(torch::kFloat).sum());
    seen.assign_add(torch::ones_like(of_war).sum());
    return loss;
  });

  tr::RemoteValue loss;
  for (int epoch = 0; epoch < 4; ++epoch) {
    right.assign(torch::zeros({}));
    seen.assign(torch::zeros({}));
    for (int i = 0; i < 5; ++i) loss = coordinator.schedule(step, data.iterator());
    coordinator.join();
    std::printf("Finished epoch %d, accuracy is %f.\n", epoch,
                (right.read() / seen.read()).item<float>());
  }
  std::printf("Final loss is %f\n", coordinator.fetch(loss).item<float>());
}
