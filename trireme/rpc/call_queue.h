#pragma once

#include <grpcpp/completion_queue.h>

#include <optional>
#include <stop_token>
#include <vector>

#include "trireme/base/gate.h"
#include "trireme/base/mutex.h"

namespace trireme::internal {

// Where a call's events arrive. The call keeps it until its last event.
struct CallQueue {
  grpc::CompletionQueue* queue;
  std::stop_token ends;  // the queue's owner stops: the call is cancelled
  Gate::Pass pass;
};

// The queues of a server's threads, where the server's own calls to others may end as well: the
// thread that serves then takes in the answers too. With threads of their own for them, the two
// kinds wake each other all the time, since gRPC lets one thread of a process poll for all. So
// whoever serves must never wait for an answer. Thread-safe.
class ServingQueues {
 public:
  void open(const std::vector<grpc::CompletionQueue*>& queues);
  // The calling thread serves this queue.
  void belongs_to_this_thread(grpc::CompletionQueue* queue);
  // For a call: the calling thread's own if it has one here. None while they are not open.
  std::optional<CallQueue> take(unsigned home);
  // Ends the calls that are left and waits until they are over; the threads must still serve.
  void close();

 private:
  std::stop_source stop_;
  Gate calls_;
  Mutex mutex_;
  std::vector<grpc::CompletionQueue*> queues_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
