#pragma once

namespace trireme::internal {

// Takes closures from a queue on behalf of one worker. A taker that finds the queue empty is
// remembered there, and is told once when closures are queued again. Thread-safe.
class ClosureTaker {
 public:
  virtual ~ClosureTaker() = default;
  // Called, without a lock of the queue, when closures are queued that the taker may take. Returns
  // false if it took none, so that another taker is told instead.
  virtual bool on_closures() = 0;

  // Called under the queue's lock: these must neither block nor use the queue.
  // Returns the index of the worker that runs the closures.
  virtual int worker() const = 0;
  // Returns true if the worker has no closures now.
  virtual bool is_idle() const = 0;
};

}  // namespace trireme::internal
