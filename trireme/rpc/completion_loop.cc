#include "trireme/rpc/completion_loop.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "trireme/base/executor.h"
#include "trireme/rpc/blocking_work.h"
#include "trireme/rpc/grpc_bridge.h"

namespace trireme::internal {
namespace {

// The queue of one thread, destroyed with it. No call is left on it then, since the thread waits
// for each call that it starts there.
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

// A loop that is created when it is first needed.
struct Lazy {
  std::once_flag once;
  CompletionLoop* loop = nullptr;
};

}  // namespace

CompletionLoop& CompletionLoop::next(unsigned home) {
  // There are at least two, so that answers of two servers can be received concurrently. Each is
  // created when it is first needed: gRPC lets one thread at a time poll for the whole process, so
  // an idle loop delays the others.
  static const unsigned count = std::max(2, default_rpc_threads());
  static auto* loops = new std::vector<Lazy>(count);
  static std::atomic<unsigned> turn = 0;
  const unsigned threads = static_cast<unsigned>(default_rpc_threads());
  const unsigned offset = threads == 1 ? 0 : turn++ % threads;
  Lazy& chosen = (*loops)[(home + offset) % count];
  // Never destroyed, because calls may be in flight while the process exits.
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
        declare_serving_thread();
        void* tag = nullptr;
        bool ok = false;
        while (queue_.Next(&tag, &ok)) Tag::dispatch(tag, ok);
      }) {}

CompletionLoop::~CompletionLoop() {
  queue_.Shutdown();
  thread_.join();
}

}  // namespace trireme::internal
