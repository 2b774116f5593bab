#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <optional>
#include <thread>

#include "trireme/rpc/call_queue.h"
#include "trireme/rpc/grpc_bridge.h"

namespace trireme::internal {

// A completion queue and the thread that polls it, for asynchronous calls. When the process ends,
// the calls in flight are cancelled, and the threads end before static objects are destroyed.
class CompletionLoop {
 public:
  // Returns the queue of a loop for a call; nullopt once the process ends. The process shares a few
  // loops among all channels. Channels with different homes start at different loops. Thread-safe.
  static std::optional<CallQueue> take(unsigned home);
  // Returns true once take() has created a loop.
  static bool any();
  // Returns the calling thread's own queue, which it polls itself, for calls that block.
  static grpc::CompletionQueue& of_this_thread();
  // Blocks for one event of the queue and dispatches it. The calls on the queue have deadlines, so
  // an event always comes.
  static void run_one(grpc::CompletionQueue& queue);

  CompletionLoop();

 private:
  static CompletionLoop& next(unsigned home);
  static void end_all();
  void end();
  void on_end(bool) { ends_ = true; }

  grpc::CompletionQueue queue_;
  grpc::Alarm alarm_;  // comes when the thread must end
  MemberTag<CompletionLoop, &CompletionLoop::on_end> end_tag_{this};
  bool ends_ = false;   // used by the thread only
  std::thread thread_;  // declared last, because it uses the other members
};

}  // namespace trireme::internal
