// A program of a user compiles and runs with the installed headers and library alone. An Error of
// the library can be thrown and caught in the program.
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <trireme/trireme.h>

#include <cstring>
#include <iostream>

namespace tr = trireme;

int main() {
  if (std::strcmp(tr::version(), TRIREME_VERSION) != 0) {
    std::cerr << "compiled with " << TRIREME_VERSION << ", runs with " << tr::version() << "\n";
    return 1;
  }
  try {
    throw tr::Error(tr::ErrorCode::kNotFound, "no such variable",
                    {.task = "/job:ps/task:1", .object = "variable 'w'"});
  } catch (const std::exception& caught) {
    const auto* error = dynamic_cast<const tr::Error*>(&caught);
    if (error == nullptr || error->origin().task != "/job:ps/task:1") return 1;
    std::cout << tr::error_code_name(error->code()) << " " << error->what() << "\n";
  }
  if (at::ones({2, 3}).numel() != 6) return 1;
  tr::InProcessCluster cluster({.workers = 3, .ps = 2});
  if (cluster.spec().all_tasks().size() != 5 || !cluster.is_running({"ps", 1})) return 1;
  std::cout << "trireme " << tr::version() << ", a cluster of " << cluster.spec().to_json() << "\n";
}
