#include "trireme/rpc/process_end.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <mutex>

namespace trireme::internal {
namespace {

std::array<std::atomic<void (*)()>, 3> steps = {};  // by EndStep; null for none
std::atomic<pid_t> process = 0;                     // the process that has the threads

void run_steps() {
  if (getpid() != process) return;
  for (const auto& step : steps) {
    if (void (*const end)() = step) end();
  }
}

}  // namespace

void at_process_end(EndStep step, void (*end)()) {
  steps[static_cast<size_t>(step)] = end;
  static std::once_flag once;
  std::call_once(once, [] {
    process = getpid();
    std::atexit(run_steps);
  });
}

}  // namespace trireme::internal
