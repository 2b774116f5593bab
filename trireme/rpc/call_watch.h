#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/rpc/grpc_bridge.h"

namespace trireme::internal {

// A call that a CallWatch checks periodically.
class WatchedCall {
 public:
  // Cancels the call if its caller has sent or taken too few bytes for too long.
  virtual void cancel_if_stalled(Time now) = 0;

 protected:
  ~WatchedCall() = default;

 private:
  friend class CallWatch;

  // Links of the watch's list.
  WatchedCall* next_ = nullptr;
  WatchedCall* previous_ = nullptr;
};

// Checks all calls of one queue of a server in each period, and cancels those whose callers have
// stalled. A timer for each call would cost more than the call. The list of calls has no lock: it
// belongs to the queue's thread, on which the alarm fires too.
class CallWatch final : public Tag {
 public:
  CallWatch(grpc::ServerCompletionQueue* queue, Duration period);

  grpc::ServerCompletionQueue* queue() const { return queue_; }

  // Add or remove a call. To be called on the queue's thread only.
  void add(WatchedCall* call);
  void remove(WatchedCall* call);

  // Sets the alarm for the next check, unless the watch has ended.
  void begin();
  // Ends the checks. Must be called before the queue is shut down, on any thread.
  void end();
  // Checks the calls, on the queue's thread.
  void on_event(bool ok) override;

 private:
  grpc::ServerCompletionQueue* const queue_;
  const Duration period_;
  WatchedCall* first_ = nullptr;  // used on the queue's thread only
  Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
