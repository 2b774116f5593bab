#include "trireme/rpc/blocking_work.h"

#include <utility>

namespace trireme::internal {
namespace {

thread_local bool is_serving_thread = false;

}  // namespace

void declare_serving_thread() {
  is_serving_thread = true;
}

void run_blocking(Work work) {
  if (!is_serving_thread) return work();
  // Never destroyed, because callbacks may run while the process exits.
  static auto* pool = new ThreadPool("trireme-ends", 1);
  pool->submit(std::move(work));
}

}  // namespace trireme::internal
