#pragma once

#include <grpcpp/completion_queue.h>

#include <thread>

#include "trireme/base/clock.h"

namespace trireme::internal {

// A completion queue and the thread that runs it, for calls that call back.
class CompletionLoop {
 public:
  // Shared by the process: a few threads serve any number of channels. Those with different homes
  // begin with different threads.
  static CompletionLoop& next(unsigned home = 0);
  // True once next() has made one.
  static bool any();
  // For calls that block: the calling thread's own queue, which it drives itself.
  static grpc::CompletionQueue& of_this_thread();
  // Runs one event of that queue. The calls on it have deadlines, so an event always comes.
  static void run_one(grpc::CompletionQueue& queue);

  CompletionLoop();
  ~CompletionLoop();
  grpc::CompletionQueue& queue() { return queue_; }

 private:
  grpc::CompletionQueue queue_;
  std::thread thread_;
};

}  // namespace trireme::internal
