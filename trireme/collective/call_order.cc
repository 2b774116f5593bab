#include "trireme/collective/call_order.h"

#include <chrono>
#include <utility>

#include "trireme/base/status.h"

namespace trireme::internal {

CallOrder::CallOrder(std::function<absl::Status(const CollectiveCall&)> run)
    : run_(std::move(run)), thread_([this] { loop(); }) {}

CallOrder::~CallOrder() {
  stop(make_status(ErrorCode::kCancelled, "the communicator was destroyed"));
  thread_.join();
}

std::shared_ptr<QueuedCall> CallOrder::add(CollectiveCall call, const char* engine) {
  auto queued = std::make_shared<QueuedCall>();
  queued->call = std::move(call);
  queued->engine = engine;
  if (queued->call.input.defined()) {
    queued->bytes = static_cast<int64_t>(queued->call.input.nbytes());
  }
  queued->order = shared_from_this();
  MutexLock lock(mutex_);
  queued->call.sequence = ++last_sequence_;
  if (stopped_) {
    queued->done = true;
    queued->result = cause_;
    return queued;
  }
  calls_.push_back(queued);
  added_.notify_one();
  return queued;
}

bool CallOrder::is_done(const QueuedCall& call) {
  MutexLock lock(mutex_);
  return call.done;
}

absl::Status CallOrder::wait(QueuedCall& call) {
  MutexLock lock(mutex_);
  while (!call.done) {
    if (!running_ && calls_.front().get() == &call) {
      run_first();
    } else {
      completed_.wait(mutex_);  // Bounded by the deadlines of the calls.
    }
  }
  return call.result;
}

bool CallOrder::busy() {
  MutexLock lock(mutex_);
  return running_ || !calls_.empty();
}

void CallOrder::stop(const absl::Status& cause) {
  MutexLock lock(mutex_);
  if (!stopped_) {
    stopped_ = true;
    cause_ = cause;
  }
  // The first call may be running; it completes by itself.
  while (calls_.size() > (running_ ? 1 : 0)) {
    calls_.back()->done = true;
    calls_.back()->result = cause_;
    calls_.pop_back();
  }
  added_.notify_all();
  completed_.notify_all();
  while (running_) completed_.wait(mutex_);  // Bounded by the deadline of the call.
}

void CallOrder::run_first() {
  const std::shared_ptr<QueuedCall> first = calls_.front();
  running_ = true;
  mutex_.unlock();
  first->ran.begin = std::chrono::steady_clock::now();
  absl::Status result = try_call([&] { throw_if_error(run_(first->call)); });
  first->ran.end = std::chrono::steady_clock::now();
  first->call.input = first->call.output = at::Tensor();
  mutex_.lock();
  running_ = false;
  calls_.pop_front();
  first->done = true;
  first->result = std::move(result);
  completed_.notify_all();
}

void CallOrder::loop() {
  MutexLock lock(mutex_);
  while (!stopped_) {
    if (running_ || calls_.empty()) {
      (running_ ? completed_ : added_).wait(mutex_);
    } else {
      run_first();
    }
  }
}

}  // namespace trireme::internal
