// Runs a custom training loop on a cluster in this process: three workers, two parameter servers.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include "examples/training_loop.h"

int main() {
  trireme::InProcessCluster cluster({.workers = 3, .ps = 2});
  train(cluster.resolver());
}
