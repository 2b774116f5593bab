#pragma once

namespace trireme::internal {

// Takes closures from a queue on behalf of one worker. The queue remembers a taker that finds it
// empty, and notifies it once when closures are queued again. Thread-safe.
class ClosureTaker {
 public:
  virtual ~ClosureTaker() = default;
  // Called without the queue's lock when closures are queued. Returns false if the taker took none,
  // so that the queue notifies another taker instead.
  virtual bool on_closures() = 0;

  // The functions below are called under the queue's lock. They must neither block nor use the
  // queue.

  // Returns the index of the worker that runs the closures.
  virtual int worker() const = 0;
  // Returns true if the worker has no batch in flight.
  virtual bool is_idle() const = 0;
};

}  // namespace trireme::internal
