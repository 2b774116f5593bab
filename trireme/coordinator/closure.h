#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/average_duration.h"
#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/coordinator/allotment.h"
#include "trireme/coordinator/avoided_workers.h"
#include "trireme/coordinator/stand_ins.h"
#include "trireme/graph/plan.h"
#include "trireme/rpc/message.h"

namespace trireme::internal {

// The stages of a closure, and the name of its type at each stage:
//
//   client:  FunctionStep (a captured call) -> Closure (scheduled)
//   wire:    ClosureRequest
//   worker:  ReceivedClosure -> ClosureRun (running) -> RunResult
//   wire:    ClosureResponse
//   client:  ClosureResult
//
// The function that a closure calls is a ClosureFunction on the client and a HostedFunction on a
// worker.

// Maximum number of times that one closure may run its function.
inline constexpr uint32_t kMostRepetitions = 1 << 20;

class ElementAccount;
class WorkerResource;
struct ClosureFunction;

// The variants of a function: captures of the same call for the other element shapes that workers
// have drawn so far. Thread-safe.
class FunctionVariants {
 public:
  // Adds a variant, unless it is present. Evicts the oldest one beyond a limit.
  void add(const std::shared_ptr<const ClosureFunction>& function);
  // Returns the variants that still exist, the newest first.
  std::vector<std::shared_ptr<const ClosureFunction>> get() const;

 private:
  mutable Mutex mutex_;
  // Newest first. Weak, since two functions are variants of each other; ClosureFunctions and the
  // closures own them.
  std::deque<std::weak_ptr<const ClosureFunction>> functions_ ABSL_GUARDED_BY(mutex_);
};

// A captured or native function that workers can run. Registered once with each worker that gets
// closures of it. Immutable once it is made, except for the estimated cost and the variants.
struct ClosureFunction {
  uint32_t id = 0;  // Unique within the coordinator.
  std::string name;
  std::shared_ptr<const Plan> plan;  // Null for a native function.
  Message registration;              // A RegisterFunctionRequest.
  // Indices of the function's variables that are in the client program's memory. Their values are
  // sent with each closure.
  std::vector<uint32_t> own;
  uint64_t answer_bytes = 0;    // Estimated size of the results.
  std::vector<uint64_t> draws;  // Number of elements that one run draws from each resource.
  // For each draw, true if the function accepts the end of the data: it uses next_optional().
  std::vector<bool> accepts_end;

  // Estimated time for which one run keeps a worker busy. The initial value is the duration of a
  // whole batch, so that the first closures are sent alone.
  mutable AverageDuration cost{std::chrono::milliseconds(1)};
  mutable FunctionVariants variants;
};

// The tensors that a closure returned, or the error with which it failed.
using ClosureResult = absl::StatusOr<std::vector<at::Tensor>>;

// One call of a function, to be run by some worker. It changes variables once however often it is
// run, because servers recognize its pushes by its sequence.
//
// Not thread-safe. Only the queue may change a closure that is queued, and only the dispatcher that
// took it may change one that is in flight.
struct Closure {
  std::shared_ptr<const ClosureFunction> function;  // The function that was scheduled.
  // The function that a worker is to run: `function`, or a variant for elements that a worker has
  // drawn. Only the dispatcher that has the closure may use it.
  std::shared_ptr<const ClosureFunction> current;
  // Inputs that no worker draws, then the values of the variables in `function->own`.
  std::vector<at::Tensor> tensors;
  // One for each draw of the function: its resource, and the account of it from which the closure
  // draws.
  std::vector<std::shared_ptr<WorkerResource>> resources;
  std::vector<std::shared_ptr<ElementAccount>> accounts;
  // Elements of each draw for the runs that are left. Empty before the closure is first sent to a
  // worker, and once its elements were used or returned (allotted_elements.h).
  std::vector<AllottedElements> allotted;
  std::shared_ptr<const void> shape;  // Structure of the results (FunctionStep::shape).
  uint64_t seed = 0;
  uint64_t step = 0;
  uint32_t repeat = 1;       // Number of times that a worker runs it.
  bool sum_results = false;  // True if its result is the sum of the results of its runs.
  std::optional<Time> deadline;
  uint64_t sequence = 0;  // First of `repeat` sequence numbers. Set by the queue.
  uint64_t place = 0;     // Number of closures that were put before it. Set by the queue.
  // Number of runs that were completed when a worker found elements of new shapes, or the end of a
  // range. The next attempt continues after them. Less than `repeat`.
  uint32_t runs_done = 0;
  std::vector<at::Tensor> sums;  // Sums of the results of these runs, if they are added up.
  // False if the function accepts the end of the data and the closure found it. Set before the
  // closure is decided.
  bool has_value = true;
  // Sets `current` to a function for elements that a worker has drawn. Captures that function if
  // necessary, so it must be called on a thread of the user.
  std::function<void(const DrawnShapes&)> capture_again;

  // Workers on which it has failed because they could not use a parameter server, or whose own
  // datasets have no more elements.
  AvoidedWorkers avoided;
  // True once an attempt has ended that may have pushed updates. Set by the queue.
  bool may_have_pushed = false;
  // Counters of the dispatchers, which limit how often a closure is retried.
  int refusals = 0;  // Number of times that a worker rejected it without running it.
  int captures = 0;  // Number of times that its function was captured again for one run.
  int ends = 0;      // Number of times that it found the end of a worker's own dataset.

  // Releases the user's objects and the elements that the closure holds. Called once it will not
  // run any more.
  void release();

  // Returns the size of the tensors that are sent with the closure.
  uint64_t bytes() const {
    uint64_t bytes = 0;
    for (const at::Tensor& tensor : tensors) bytes += tensor.defined() ? tensor.nbytes() : 0;
    return bytes;
  }

 private:
  friend class ClosureQueue;
  std::atomic<bool> decided_ = false;  // True once `result_` is set. For threads that spin.
  // Guarded by the queue's lock.
  std::optional<ClosureResult> result_;
  int worker_ = -1;  // Index of the worker that took it last.
};

using ClosurePtr = std::shared_ptr<Closure>;

}  // namespace trireme::internal
