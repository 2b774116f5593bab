// A client program of connecting_test. It prints "begins", uses a cluster that the test describes
// incorrectly on purpose, and prints "ok" or the error.
//
//   mistaken_client session|strategy|coordinator CLUSTER_JSON CERTS TIMEOUT_MS
#include <torch/types.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "trireme/capture/device_scope.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/function.h"
#include "trireme/runtime/session.h"

namespace tr = trireme;
using torch::Tensor;

namespace {

void use_session(const tr::ClusterSpec& spec, const std::string& certs,
                 std::chrono::milliseconds timeout) {
  tr::Session session("grpc://" + spec.address({"worker", 0}),
                      {.timeout = timeout, .certs = certs});
  const std::string last = spec.tasks("worker").back().to_string();
  const auto step = tr::function("step", [&](const Tensor& x) {
    const tr::DeviceScope on(last);
    return x + 1;
  });
  session.run(step, torch::ones({}));
}

void use_coordinator(const tr::ClusterSpec& spec, const std::string& certs,
                     std::chrono::milliseconds timeout) {
  tr::ParameterServerStrategy strategy(tr::Cluster(spec),
                                       {.connect_timeout = timeout, .certs = certs});
  tr::ClusterCoordinator coordinator(strategy);
  const auto step = tr::function("step", [](const Tensor& x) { return x + 1; });
  for (int i = 0; i < 3; ++i) coordinator.schedule(step, torch::ones({}));
  coordinator.join(timeout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::string what = argv[1], certs = argv[3];
  const std::chrono::milliseconds timeout(std::stoi(argv[4]));
  std::printf("begins\n");
  std::fflush(stdout);
  try {
    const auto spec = tr::ClusterSpec::from_json(argv[2]);
    if (what == "session") {
      use_session(spec, certs, timeout);
    } else if (what == "coordinator") {
      use_coordinator(spec, certs, timeout);
    } else {
      tr::ParameterServerStrategy(tr::Cluster(spec), {.connect_timeout = timeout, .certs = certs});
    }
  } catch (const tr::Error& error) {
    std::printf("error: %s: %s\n", tr::error_code_name(error.code()), error.what());
    return 1;
  }
  std::printf("ok\n");
  return 0;
}
