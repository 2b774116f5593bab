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
  train(me, flags.certs());
  tr::end_job(me.spec, {.certs = flags.certs()});
  return 0;
} catch (const tr::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
