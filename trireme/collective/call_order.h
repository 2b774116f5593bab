#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "trireme/base/mutex.h"
#include "trireme/collective/call.h"
#include "trireme/exec/operator_trace.h"

namespace trireme::internal {

class CallOrder;

// A call that waits for its turn, runs, or is complete.
struct QueuedCall {
  CollectiveCall call;  // its tensors are dropped when it is complete
  std::shared_ptr<CallOrder> order;
  const char* engine = "";  // name of the engine, for traces
  int64_t bytes = 0;        // size of the call's input
  bool done = false;        // guarded by the order's lock
  // Set before `done`.
  absl::Status result;
  TimeSpan ran;  // time in which the engine carried it out
};

// Carries out calls one after the other, in the order in which they were added. A thread of its own
// runs them. A thread that waits for the next call in turn runs it itself, since waking the other
// one takes longer than a small call. Thread-safe. Must be held by a shared_ptr.
class CallOrder : public std::enable_shared_from_this<CallOrder> {
 public:
  // `run` carries out a call. It is never called twice at a time.
  explicit CallOrder(std::function<absl::Status(const CollectiveCall&)> run);
  // Stops the thread; see stop().
  ~CallOrder();

  // Adds a call and gives it the next number. `engine` names the engine that will carry it out.
  std::shared_ptr<QueuedCall> add(CollectiveCall call, const char* engine);
  bool is_done(const QueuedCall& call);
  // Blocks until the call is complete, and returns its result.
  absl::Status wait(QueuedCall& call);

  // Returns true if a call waits or runs.
  bool busy();
  // Ends the calls that wait with this error, and later ones at once. Blocks until the call that
  // runs is complete.
  void stop(const absl::Status& cause);

 private:
  // Runs the first call. The caller holds the lock, which is released meanwhile.
  void run_first() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void loop();

  const std::function<absl::Status(const CollectiveCall&)> run_;
  Mutex mutex_;
  CondVar added_, completed_;
  std::deque<std::shared_ptr<QueuedCall>> calls_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);  // why it was stopped
  std::thread thread_;
};

}  // namespace trireme::internal
