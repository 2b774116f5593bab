#include "trireme/rpc/call_watch.h"

namespace trireme::internal {

CallWatch::CallWatch(grpc::ServerCompletionQueue* queue, Duration period)
    : queue_(queue), period_(period) {}

void CallWatch::add(WatchedCall* call) {
  call->next_ = first_;
  call->previous_ = nullptr;
  if (first_ != nullptr) first_->previous_ = call;
  first_ = call;
}

void CallWatch::remove(WatchedCall* call) {
  if (call->previous_ != nullptr) call->previous_->next_ = call->next_;
  if (call->next_ != nullptr) call->next_->previous_ = call->previous_;
  if (first_ == call) first_ = call->next_;
}

void CallWatch::begin() {
  MutexLock lock(mutex_);
  if (!ended_) alarm_.Set(queue_, to_timespec(after(period_)), start());
}

void CallWatch::end() {
  MutexLock lock(mutex_);
  ended_ = true;
  alarm_.Cancel();
}

void CallWatch::on_event(bool ok) {
  if (!ok) return;
  const Time now = Clock::real().now();
  for (WatchedCall* call = first_; call != nullptr; call = call->next_)
    call->cancel_if_stalled(now);
  begin();
}

}  // namespace trireme::internal
