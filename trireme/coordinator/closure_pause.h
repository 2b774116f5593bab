#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/coordinator/closure_queue.h"

namespace trireme::internal {

// The workers of a queue, as a pause uses them. Thread-safe.
class PausedWorkers {
 public:
  virtual ~PausedWorkers() = default;

  // Asks all workers to end the closures that have not begun to push. The workers return these with
  // ClosureQueue::put_back_unpushed(). Does not block.
  virtual void cancel_unpushed() = 0;
  // Returns the tasks of the workers that have closures.
  virtual std::vector<std::string> busy() const = 0;
};

// Holds a queue at a cut: no closure is in flight, the updates of each closure were applied either
// all or not at all, and the parameter servers apply none until the object is destroyed. Closures
// can be put meanwhile.
class ClosurePause {
 public:
  ClosurePause(std::shared_ptr<ClosureQueue> queue, uint64_t below)
      : queue_(std::move(queue)), below_(below) {}
  // Lets closures be taken again.
  ~ClosurePause() { queue_->end_pause(); }

  ClosurePause(const ClosurePause&) = delete;
  ClosurePause& operator=(const ClosurePause&) = delete;

  // Returns the sequence below which all closures are decided and the servers reject updates. No
  // other closure was begun.
  uint64_t below() const { return below_; }

 private:
  const std::shared_ptr<ClosureQueue> queue_;
  const uint64_t below_;
};

// Pauses the queue. Closures in flight may end until `drain_until`. After that, workers are asked
// to end those that have not begun to push, which run again after the pause. Runs deferred captures
// while it waits, so it must be called on a thread of the user.
//
// Returns an error at `limit` that names the tasks that it has waited for, and the pending error of
// a closure or of close() at once. The queue then goes on as before.
absl::StatusOr<std::unique_ptr<ClosurePause>> pause_closures(
    const std::shared_ptr<ClosureQueue>& queue, PausedWorkers& workers, Time drain_until,
    Time limit);

}  // namespace trireme::internal
