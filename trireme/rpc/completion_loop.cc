#include "trireme/rpc/completion_loop.h"

#include <algorithm>
#include <atomic>
#include <memory>
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

}  // namespace

CompletionLoop& CompletionLoop::next(unsigned home) {
  // Never destroyed: calls may be under way while the process ends.
  static auto* loops = [] {
    auto* made = new std::vector<std::unique_ptr<CompletionLoop>>();
    // Two at least, so that answers of two servers are taken in at once.
    for (int i = 0; i < std::max(2, default_rpc_threads()); ++i)
      made->push_back(std::make_unique<CompletionLoop>());
    return made;
  }();
  static std::atomic<unsigned> turn = 0;
  return *(*loops)[(home + turn++ % default_rpc_threads()) % loops->size()];
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
