#include "trireme/rpc/blocking_work.h"

#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <utility>

namespace trireme::internal {
namespace {

thread_local bool is_serving_thread = false;

// Time for which the process waits for work when it ends.
constexpr auto kEndTime = std::chrono::seconds(5);

// Returns the thread for work. Never destroyed, because callbacks may run while the process ends.
ThreadPool& pool() {
  static auto* pool = [] {
    static auto* made = new ThreadPool("trireme-ends", 1);
    std::atexit([] {
      auto done = std::make_shared<std::promise<void>>();
      made->submit([done] { done->set_value(); });
      done->get_future().wait_for(kEndTime);
    });
    return made;
  }();
  return *pool;
}

}  // namespace

void declare_serving_thread() {
  is_serving_thread = true;
}

void run_blocking(Work work) {
  if (!is_serving_thread) return work();
  pool().submit(std::move(work));
}

}  // namespace trireme::internal
