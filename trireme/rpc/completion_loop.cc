#include "trireme/rpc/completion_loop.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "trireme/base/executor.h"
#include "trireme/rpc/grpc_bridge.h"

namespace trireme::internal {
namespace {

// Ends with its thread. No call is left on it: the thread waits for each that it starts.
struct ThreadQueue {
  grpc::CompletionQueue queue;
  ~ThreadQueue() {
    queue.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue.Next(&tag, &ok)) {
    }
  }
};

std::atomic<bool> any_loop = false;

struct Lazy {
  std::once_flag once;
  CompletionLoop* loop = nullptr;
};

}  // namespace

CompletionLoop& CompletionLoop::next(unsigned home) {
  // Two at least, so that answers of two servers are taken in at once. Each is made when first
  // needed: gRPC lets one thread of a process poll for all, so an idle one delays the others.
  static const unsigned count = std::max(2, default_rpc_threads());
  static auto* loops = new std::vector<Lazy>(count);
  static std::atomic<unsigned> turn = 0;
  const unsigned threads = static_cast<unsigned>(default_rpc_threads());
  const unsigned offset = threads == 1 ? 0 : turn++ % threads;
  Lazy& chosen = (*loops)[(home + offset) % count];
  // Never destroyed: calls may be under way while the process ends.
  std::call_once(chosen.once, [&] {
    chosen.loop = new CompletionLoop;
    any_loop = true;
  });
  return *chosen.loop;
}

bool CompletionLoop::any() {
  return any_loop.load(std::memory_order_relaxed);
}

grpc::CompletionQueue& CompletionLoop::of_this_thread() {
  thread_local ThreadQueue queue;
  return queue.queue;
}

void CompletionLoop::run_one(grpc::CompletionQueue& queue) {
  void* tag = nullptr;
  bool ok = false;
  if (queue.Next(&tag, &ok)) Tag::dispatch(tag, ok);
}

CompletionLoop::CompletionLoop()
    : thread_([this] {
        set_thread_name("trireme-calls");
        void* tag = nullptr;
        bool ok = false;
        while (queue_.Next(&tag, &ok)) Tag::dispatch(tag, ok);
      }) {}

CompletionLoop::~CompletionLoop() {
  queue_.Shutdown();
  thread_.join();
}

}  // namespace trireme::internal
