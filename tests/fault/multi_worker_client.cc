// A client program for tests that kill or freeze it: one of several workers that train together.
//
//   multi_worker_client FILE STEPS LEASE_MS auto|ring|gloo
//
// TF_CONFIG has the cluster and the task. After each step the worker writes the number of its steps
// to FILE (shared_steps.h). Prints, and returns:
//
//   done                 0, after STEPS steps
//   error CODE: text     3
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/fault/shared_steps.h"
#include "trireme/cluster/flags.h"
#include "trireme/distribute/strategy.h"
#include "trireme/function/function.h"
#include "trireme/optim/optimizer.h"

namespace tr = trireme;
namespace nn = torch::nn;
using torch::Tensor;

namespace {

tr::CommunicationImplementation implementation_named(const std::string& name) {
  if (name == "ring") return tr::CommunicationImplementation::kRing;
  if (name == "gloo") return tr::CommunicationImplementation::kGloo;
  return tr::CommunicationImplementation::kAuto;
}

int failed(const tr::Error& error) {
  std::printf("error %s: %s\n", tr::error_code_name(error.code()), error.what());
  return 3;
}

// Returns the exit code.
int train(const tr::Cluster& me, const std::vector<std::string>& arguments) {
  const int worker = me.task->index;
  const tr::SharedSteps steps(arguments[0], static_cast<int>(me.spec.tasks("worker").size()));
  const int64_t last = std::stol(arguments[1]);
  const tr::MultiWorkerMirroredStrategy strategy(
      me, {.implementation = implementation_named(arguments[3]),
           .lease = std::chrono::milliseconds(std::stol(arguments[2]))});
  torch::manual_seed(1 + worker);  // worker 0 decides the initial values
  nn::Sequential net(nn::Linear(32, 128), nn::ReLU(), nn::Linear(128, 1));
  net = strategy.distribute(net);
  const auto scope = strategy.scope();
  tr::Adam optimizer(net, {.lr = 0.001});
  const auto step = tr::function("step", [&](const tr::PerReplica<Tensor>& batches) {
    const auto losses = strategy.run(
        [&](const Tensor& x) {
          const Tensor loss =
              torch::mse_loss(net->forward(x), x.sum(1, true)) / strategy.num_replicas_in_sync();
          optimizer.minimize(loss);
          return loss;
        },
        batches);
    return strategy.reduce(tr::ReduceOp::kSum, losses);
  });
  try {
    for (int64_t i = 1; i <= last; ++i) {
      step(tr::PerReplica<Tensor>({torch::rand({16, 32})}));
      steps[worker] = i;
    }
  } catch (const tr::Error& error) {
    return failed(error);  // before the strategy ends, which waits for a worker that is frozen
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  at::set_num_threads(1);
  try {
    const tr::Flags flags(argc, argv);
    if (flags.rest().size() != 4) return 2;
    const int code = train(tr::resolve(flags), flags.rest());
    if (code == 0) std::puts("done");
    return code;
  } catch (const tr::Error& error) {
    return failed(error);
  }
}
