#pragma once

#include <grpcpp/completion_queue.h>

#include <optional>
#include <stop_token>
#include <vector>

#include "trireme/base/gate.h"
#include "trireme/base/mutex.h"

namespace trireme::internal {

// The completion queue of an outgoing call, which holds this struct until its last event.
struct CallQueue {
  grpc::CompletionQueue* queue = nullptr;
  std::stop_token ends;  // stops when the queue's owner does; the call is then cancelled
  Gate::Pass pass;       // keeps the queue open
};

// The queues of a server's threads, on which the server's own calls to other tasks may complete
// too, so that the threads which serve also receive the answers. With separate threads for both,
// the two kinds would wake each other all the time, since gRPC lets one thread at a time poll for
// the whole process. A handler must therefore never block on an answer. Thread-safe.
class ServingQueues {
 public:
  // Called by the server when it starts, with one queue for each of its threads.
  void open(const std::vector<grpc::CompletionQueue*>& queues);
  // Declares that the calling thread polls `queue`. Its calls then complete on that queue.
  void serve_on_this_thread(grpc::CompletionQueue* queue);
  // Returns a queue for a call: the calling thread's own if it serves one here, otherwise the one
  // that `home` selects. Returns nullopt before open() and after close().
  std::optional<CallQueue> take(unsigned home);
  // Cancels the calls that are left and blocks until they have ended. The server's threads must
  // still run.
  void close();

 private:
  std::stop_source stop_;
  Gate calls_;  // holds the calls that use a queue
  Mutex mutex_;
  std::vector<grpc::CompletionQueue*> queues_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
