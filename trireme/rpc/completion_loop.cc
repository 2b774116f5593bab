#include "trireme/rpc/completion_loop.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
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
std::atomic<bool> process_ends = false;

// Time within which a thread ends when the process does. A handler that takes longer is left alone.
constexpr auto kEndTime = std::chrono::seconds(2);

// A loop that is created when it is first needed.
struct Lazy {
  std::once_flag once;
  std::atomic<CompletionLoop*> loop = nullptr;
};

// The loops of the process. Never destroyed, because calls may be in flight while it ends.
std::vector<Lazy>& all_loops() {
  // There are at least two, so that answers of two servers can be received concurrently. Each is
  // created when it is first needed: gRPC lets one thread at a time poll for the whole process, so
  // an idle loop delays the others.
  static auto* loops = new std::vector<Lazy>(std::max(2, default_rpc_threads()));
  return *loops;
}

}  // namespace

CompletionLoop& CompletionLoop::next(unsigned home) {
  std::vector<Lazy>& loops = all_loops();
  static std::atomic<unsigned> turn = 0;
  const unsigned threads = static_cast<unsigned>(default_rpc_threads());
  const unsigned offset = threads == 1 ? 0 : turn++ % threads;
  Lazy& chosen = loops[(home + offset) % loops.size()];
  std::call_once(chosen.once, [&] {
    chosen.loop = new CompletionLoop;
    // Objects that are static and exist by now, those of LibTorch and gRPC among them, are
    // destroyed after the function has run.
    if (!any_loop.exchange(true)) std::atexit(end_all);
  });
  return *chosen.loop;
}

void CompletionLoop::end_all() {
  process_ends = true;
  for (Lazy& each : all_loops()) {
    if (CompletionLoop* loop = each.loop) loop->end();
  }
}

bool CompletionLoop::ended() {
  return process_ends.load(std::memory_order_relaxed);
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
        while (!ends_ && queue_.Next(&tag, &ok)) Tag::dispatch(tag, ok);
        ended_.set_value();
      }) {}

void CompletionLoop::end() {
  if (thread_.get_id() == std::this_thread::get_id()) return;  // a handler ends the process
  alarm_.Set(&queue_, to_timespec(Clock::real().now()), end_tag_.start());
  ended_.get_future().wait_for(kEndTime);
}

}  // namespace trireme::internal
