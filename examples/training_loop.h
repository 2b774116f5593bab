#pragma once

#include <torch/torch.h>
#include <trireme/trireme.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

// A custom training loop: a net learns from the cargo of ships which of them are warships.

inline const std::vector<std::string> kCargo = {"ram",     "oar",   "sail",  "anchor",
                                                "amphora", "grain", "rudder"};
constexpr int64_t kCargoBytes = 8;  // longest word

struct Ship {
  std::vector<std::string> cargo;  // three things
  bool of_war = false;             // true if it has a ram
};

// Returns random ships.
inline std::vector<Ship> ships(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Ship> all(count);
  for (Ship& ship : all) {
    std::sample(kCargo.begin(), kCargo.end(), std::back_inserter(ship.cargo), 3, random);
    ship.of_war = std::find(ship.cargo.begin(), ship.cargo.end(), "ram") != ship.cargo.end();
  }
  return all;
}

// Returns the numbers of the words of kCargo, and 0 for other words.
inline trireme::StringLookup vocabulary() {
  return trireme::StringLookup(kCargo, {.bytes = kCargoBytes});
}

struct ShipNetImpl : torch::nn::Module {
  ShipNetImpl() {
    register_module("things", things);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& cargo) {
    return out->forward(things->forward(cargo).mean(1)).squeeze(1);
  }
  torch::nn::Embedding things{vocabulary().size(), 8};
  torch::nn::Linear out{8, 1};
};
TORCH_MODULE(ShipNet);

// Trains on the datasets of the workers. Their elements are batches: the numbers of the cargo, and
// 1 for each warship.
inline void train(const trireme::Cluster& cluster,
                  const std::function<trireme::Dataset(const trireme::InputContext&)>& dataset) {
  namespace tr = trireme;
  torch::manual_seed(1);
  tr::ParameterServerStrategy strategy(cluster,
                                       {.partitioner = tr::MinSizePartitioner(256 << 10, 2)});
  tr::ClusterCoordinator coordinator(strategy);
  auto net = strategy.distribute<ShipNet>();
  auto scope = strategy.scope();
  tr::RmsProp optimizer(net, {.lr = 0.1, .alpha = 0.9});
  tr::Accuracy accuracy(strategy);

  auto data = coordinator.create_per_worker_dataset(dataset);
  auto step = tr::function("train", [&](tr::Iterator& batches) {
    auto [cargo, of_war] = batches.next<2>();
    torch::Tensor logits = net->forward(cargo);
    torch::Tensor loss = torch::binary_cross_entropy_with_logits(logits, of_war);
    optimizer.minimize(loss);
    accuracy.update(of_war, logits > 0);
    return loss;
  });

  tr::RemoteValue loss;
  for (int epoch = 0; epoch < 4; ++epoch) {
    accuracy.reset();
    for (int i = 0; i < 5; ++i) loss = coordinator.schedule(step, data.iterator());
    coordinator.join();
    std::printf("Finished epoch %d, accuracy is %f.\n", epoch, accuracy.result());
  }
  std::printf("Final loss is %f\n", coordinator.fetch(loss).item<float>());
}
