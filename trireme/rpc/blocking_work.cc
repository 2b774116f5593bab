#include "trireme/rpc/blocking_work.h"

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <utility>

#include "trireme/rpc/process_end.h"

namespace trireme::internal {
namespace {

thread_local bool is_serving_thread = false;

// Time for which the process waits for work when it ends.
constexpr auto kEndTime = std::chrono::seconds(5);

thread_local bool is_pool_thread = false;
ThreadPool* pool = nullptr;  // Never destroyed, because callbacks may run while the process ends.

// Waits for the work that was submitted.
void end_work() {
  if (is_pool_thread) return;  // work ends the process
  auto done = std::make_shared<std::promise<void>>();
  pool->submit([done] { done->set_value(); });
  done->get_future().wait_for(kEndTime);
}

}  // namespace

void declare_serving_thread() {
  is_serving_thread = true;
}

void run_blocking(Work work) {
  if (!is_serving_thread) return work();
  static std::once_flag once;
  std::call_once(once, [] {
    pool = new ThreadPool("trireme-ends", 1);
    pool->submit([] { is_pool_thread = true; });
    at_process_end(EndStep::kWork, end_work);
  });
  pool->submit(std::move(work));
}

}  // namespace trireme::internal
