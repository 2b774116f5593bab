#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include "trireme/base/mutex.h"
#include "trireme/rpc/grpc_bridge.h"

namespace trireme::internal {

class IncomingCall;

// The calls of one queue of a server, looked at again and again for callers that neither go on nor
// go away. A timer for each call would cost more than the call.
class CallWatch final : public Tag {
 public:
  CallWatch(grpc::ServerCompletionQueue* queue, Duration period);

  grpc::ServerCompletionQueue* queue() const { return queue_; }

  // On the queue's thread only.
  void add(IncomingCall* call);
  void remove(IncomingCall* call);

  void begin();
  // Before the queue is shut down. Any thread.
  void end();
  void on_event(bool ok) override;

 private:
  grpc::ServerCompletionQueue* const queue_;
  const Duration period_;
  IncomingCall* first_ = nullptr;
  Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
