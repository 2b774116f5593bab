#pragma once

#include <grpcpp/completion_queue.h>

#include <thread>

#include "trireme/base/clock.h"

namespace trireme::internal {

// A completion queue and the thread that polls it, for asynchronous calls.
class CompletionLoop {
 public:
  // Returns a loop for a call. The process shares a few loops among all channels. Channels with
  // different homes start at different loops. Thread-safe.
  static CompletionLoop& next(unsigned home = 0);
  // Returns true once next() has created a loop.
  static bool any();
  // Returns the calling thread's own queue, which it polls itself, for calls that block.
  static grpc::CompletionQueue& of_this_thread();
  // Blocks for one event of the queue and dispatches it. The calls on the queue have deadlines, so
  // an event always comes.
  static void run_one(grpc::CompletionQueue& queue);

  CompletionLoop();
  ~CompletionLoop();
  grpc::CompletionQueue& queue() { return queue_; }

 private:
  grpc::CompletionQueue queue_;
  std::thread thread_;
};

}  // namespace trireme::internal
