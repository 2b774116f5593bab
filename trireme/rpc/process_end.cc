#include "trireme/rpc/process_end.h"

#include <openssl/ssl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <mutex>

namespace trireme::internal {
namespace {

// Time within which a thread ends. One whose work takes longer is left alone.
constexpr time_t kSecondsToEnd = 2;

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
    // Functions run in the opposite order. OpenSSL must still be there for connections that end, so
    // it registers its own function first.
    OPENSSL_init_ssl(0, nullptr);
    std::atexit(run_steps);
  });
}

// A thread frees its memory in OpenSSL last, so it must be gone before OpenSSL is.
void await_thread_end(std::thread& thread) {
  timespec limit = {};
  clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_sec += kSecondsToEnd;
  pthread_timedjoin_np(thread.native_handle(), nullptr, &limit);
}

}  // namespace trireme::internal
