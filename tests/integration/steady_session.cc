// The well-behaved client program of hostile_graphs_test. It runs steps of a session on a server
// until SIGTERM and checks every result. Exits with 1 if a step fails or gives a wrong result.
#include <ATen/Parallel.h>
#include <torch/types.h>

#include <csignal>
#include <cstdio>

#include "trireme/function/function.h"
#include "trireme/runtime/session.h"

namespace {
volatile std::sig_atomic_t ended = 0;
}

int main(int argc, char** argv) {
  using torch::Tensor;
  std::signal(SIGTERM, [](int) { ended = 1; });
  at::set_num_threads(1);
  long steps = 0;
  try {
    trireme::Session session(argc > 1 ? argv[1] : "");
    const trireme::Variable secret("secret", torch::full({4096}, 1234.5), {.trainable = false});
    const auto step = trireme::function("step", [&](const Tensor& x) {
      return torch::stack({secret.read().sum(), (x * 2).sum()});
    });
    const Tensor x = torch::arange(4096, torch::kFloat);
    for (; !ended; ++steps) {
      const Tensor sums = session.run(step, x);
      if (sums[0].item<double>() != 4096 * 1234.5 || sums[1].item<double>() != 4096.0 * 4095) {
        std::printf("step %ld gave %f and %f\n", steps, sums[0].item<double>(),
                    sums[1].item<double>());
        return 1;
      }
      if (steps == 0) {
        std::printf("running\n");
        std::fflush(stdout);
      }
    }
  } catch (const std::exception& error) {
    std::printf("step %ld failed: %s\n", steps, error.what());
    return 1;
  }
  std::printf("%ld steps\n", steps);
  return 0;
}
