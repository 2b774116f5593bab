#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/rpc/grpc_bridge.h"

namespace trireme::internal {

// A call that a watch looks at. Its links belong to the watch.
class WatchedCall {
 public:
  // Cancels the call when its caller has sent or taken too little for too long.
  virtual void let_go_if_late(Time now) = 0;

 protected:
  ~WatchedCall() = default;

 private:
  friend class CallWatch;

  WatchedCall* next_ = nullptr;
  WatchedCall* previous_ = nullptr;
};

// The calls of one queue of a server, looked at again and again for callers that neither go on nor
// go away. A timer for each call would cost more than the call.
class CallWatch final : public Tag {
 public:
  CallWatch(grpc::ServerCompletionQueue* queue, Duration period);

  grpc::ServerCompletionQueue* queue() const { return queue_; }

  // On the queue's thread only.
  void add(WatchedCall* call);
  void remove(WatchedCall* call);

  void begin();
  // Before the queue is shut down. Any thread.
  void end();
  void on_event(bool ok) override;

 private:
  grpc::ServerCompletionQueue* const queue_;
  const Duration period_;
  WatchedCall* first_ = nullptr;
  Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
