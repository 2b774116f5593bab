#include "trireme/rpc/call_queue.h"

namespace trireme::internal {
namespace {

// The queue that a thread polls, and its owner: a process may run several servers.
struct Served {
  const ServingQueues* of = nullptr;
  grpc::CompletionQueue* queue = nullptr;
};
thread_local Served served;

}  // namespace

void ServingQueues::open(const std::vector<grpc::CompletionQueue*>& queues) {
  MutexLock lock(mutex_);
  queues_ = queues;
}

void ServingQueues::serve_on_this_thread(grpc::CompletionQueue* queue) {
  served = {this, queue};
}

std::optional<CallQueue> ServingQueues::take(unsigned home) {
  Gate::Pass pass = calls_.enter();
  if (!pass) return std::nullopt;
  grpc::CompletionQueue* queue = served.of == this ? served.queue : nullptr;
  if (queue == nullptr) {
    MutexLock lock(mutex_);
    if (queues_.empty()) return std::nullopt;
    queue = queues_[home % queues_.size()];
  }
  return CallQueue{queue, stop_.get_token(), std::move(pass)};
}

void ServingQueues::close() {
  stop_.request_stop();
  while (!calls_.close(after(std::chrono::minutes(1)))) {
  }
}

}  // namespace trireme::internal
