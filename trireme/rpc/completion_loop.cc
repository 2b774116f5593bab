#include "trireme/rpc/completion_loop.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/executor.h"
#include "trireme/rpc/blocking_work.h"
#include "trireme/rpc/grpc_bridge.h"
#include "trireme/rpc/process_end.h"

namespace trireme::internal {
namespace {

// True once the queue of this thread is destroyed. Static objects are destroyed later, by the
// thread that ends the process, and may make calls then.
thread_local bool is_gone = false;

// The queue of one thread, destroyed with it. No call is left on it then, since the thread waits
// for each call that it starts there.
struct ThreadQueue {
  grpc::CompletionQueue queue;
  ~ThreadQueue() {
    is_gone = true;
    queue.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue.Next(&tag, &ok)) {
    }
  }
};

std::atomic<bool> any_loop = false;

// Time within which cancelled calls are answered when the process ends.
constexpr auto kCancelTime = std::chrono::seconds(1);

// The calls on all loops.
struct LoopCalls {
  std::stop_source stop;
  Gate gate;
};
LoopCalls& loop_calls() {
  static auto* calls = new LoopCalls;
  return *calls;
}

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
    if (!any_loop.exchange(true)) at_process_end(EndStep::kCalls, end_all);
  });
  return *chosen.loop;
}

std::optional<CallQueue> CompletionLoop::take(unsigned home) {
  LoopCalls& calls = loop_calls();
  Gate::Pass pass = calls.gate.enter();
  if (!pass) return std::nullopt;
  return CallQueue{&next(home).queue_, calls.stop.get_token(), std::move(pass)};
}

void CompletionLoop::end_all() {
  loop_calls().stop.request_stop();
  loop_calls().gate.close(after(kCancelTime));
  for (Lazy& each : all_loops()) {
    if (CompletionLoop* loop = each.loop) loop->end();
  }
}

bool CompletionLoop::any() {
  return any_loop.load(std::memory_order_relaxed);
}

grpc::CompletionQueue& CompletionLoop::of_this_thread() {
  if (is_gone) {
    static thread_local auto* last = new grpc::CompletionQueue;
    return *last;
  }
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
      }) {}

void CompletionLoop::end() {
  if (thread_.get_id() == std::this_thread::get_id()) return;  // a handler ends the process
  alarm_.Set(&queue_, to_timespec(Clock::real().now()), end_tag_.start());
  await_thread_end(thread_);
}

}  // namespace trireme::internal
