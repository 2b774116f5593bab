// One program for every task of a cluster: as worker or parameter server it serves, as chief it
// trains.
//
//   train_in_real_world_cluster --cluster cluster.json --task_type ps --task_index 0
//   train_in_real_world_cluster --cluster cluster.json --task_type worker --task_index 0
//   train_in_real_world_cluster --cluster cluster.json --task_type chief
//
// If the tasks are on several machines, each of them also needs --certs FOLDER.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <iostream>

#include "examples/training_loop.h"

namespace tr = trireme;

// Returns the batches of one worker, which has ships of its own. The worker turns the words of
// their cargo into numbers.
tr::Dataset own_ships(const tr::InputContext& context) {
  std::vector<std::string> cargo;
  std::vector<float> of_war;
  for (const Ship& ship : ships(200, context.input_pipeline_id)) {
    cargo.insert(cargo.end(), ship.cargo.begin(), ship.cargo.end());
    of_war.push_back(ship.of_war);
  }
  const torch::Tensor text = tr::text_tensor(cargo, kCargoBytes).view({-1, 3, kCargoBytes});
  return tr::Dataset::from_tensors({text, torch::tensor(of_war)})
      .shuffle(200)
      .repeat()
      .batch(32)
      .map([lookup = vocabulary()](const torch::Tensor& words, const torch::Tensor& labels) {
        return std::make_pair(lookup(words), labels);
      });
}

int main(int argc, char** argv) try {
  const tr::Flags flags(argc, argv);
  const tr::Cluster me = tr::resolve(flags);
  if (me.is_server()) return tr::Server(me, {.certs = flags.certs()}).join();
  if (me.is_evaluator()) {
    std::cerr << "An evaluator has nothing to do yet: it needs checkpoints.\n";
    return 2;
  }
  if (me.is_local()) {
    std::cerr << "This process has no cluster; give --cluster FILE, or set TF_CONFIG.\n";
    return 2;
  }
  train(me, own_ships, flags.certs());
  tr::end_job(me.spec, {.certs = flags.certs()});
  return 0;
} catch (const tr::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
