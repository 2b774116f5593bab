#pragma once

#include <thread>

namespace trireme::internal {

// The threads that serve a whole process end with it, in these steps.
enum class EndStep {
  kWork,    // work that has begun is done
  kCalls,   // calls in flight are cancelled, and answers are no longer received
  kTimers,  // what waits for a time runs at once
};

// Runs `end` when the process ends normally, before static objects that exist by now are destroyed.
// Whatever ran later, LibTorch's and gRPC's static objects could be gone. `end` must not block for
// long. One function is kept for each step. A child of fork(), which has no such thread, runs none.
void at_process_end(EndStep step, void (*end)());

// Blocks until the thread, which was told to end, has ended, but for two seconds at most. Nothing
// else may join the thread, and its object must never be destroyed.
void await_thread_end(std::thread& thread);

}  // namespace trireme::internal
