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
#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/base/usual_time.h"
#include "trireme/coordinator/per_worker_values.h"
#include "trireme/graph/plan.h"
#include "trireme/rpc/message.h"

namespace trireme::internal {

// A closure on its way, and its name at each stage:
//
//   client:  FunctionStep (a captured call) -> Closure (scheduled)
//   wire:    ClosureRequest
//   worker:  ReceivedClosure -> ClosureRun (is running) -> RunResult
//   wire:    ClosureResponse
//   client:  ClosureResult
//
// The function that it calls is a ClosureFunction on the client and a HostedFunction on a worker.

// How often one closure may run its function.
inline constexpr uint32_t kMostRepetitions = 1 << 20;

class WorkerResource;
struct ClosureFunction;

// Functions that are the same call for elements of other shapes, as far as workers have met such.
// Thread-safe.
class FunctionVariants {
 public:
  void add(const std::shared_ptr<const ClosureFunction>& function);
  std::vector<std::shared_ptr<const ClosureFunction>> get() const;

 private:
  mutable Mutex mutex_;
  // The last to be added first. Those who made the functions hold them.
  std::deque<std::weak_ptr<const ClosureFunction>> functions_ ABSL_GUARDED_BY(mutex_);
};

// A captured function as workers run it. Registered once with each worker that gets closures of it.
struct ClosureFunction {
  uint32_t id = 0;
  std::string name;
  std::shared_ptr<const Plan> plan;
  Message registration;       // RegisterFunctionRequest
  std::vector<uint32_t> own;  // those of its variables that travel with each closure
  uint64_t answer_bytes = 0;

  // Of a closure on a worker. At first as long as a batch may last, so that the first ones run
  // alone.
  mutable UsualTime cost{std::chrono::milliseconds(1)};
  mutable FunctionVariants variants;
};

using ClosureResult = absl::StatusOr<std::vector<at::Tensor>>;

// One call of a function, which some worker is to run. It changes variables once, however often it
// is run: servers know its pushes by its sequence.
struct Closure {
  std::shared_ptr<const ClosureFunction> function;  // as it was scheduled
  // What a worker is to run: the same, or a variant for elements that one has drawn. Only for who
  // has the closure in hand.
  std::shared_ptr<const ClosureFunction> current;
  std::vector<at::Tensor>
      tensors;  // inputs that no worker draws, then the function's own variables
  std::vector<std::shared_ptr<WorkerResource>> resources;  // one for each draw of the function
  std::shared_ptr<const void> shape;                       // of its results
  uint64_t seed = 0;
  uint64_t step = 0;
  uint32_t repeat = 1;  // how often a worker runs it
  std::optional<Time> deadline;
  uint64_t sequence = 0;  // the first of `repeat`; given by the queue
  // Gives it a function for elements that a worker has drawn. Captures, on a thread of the user.
  std::function<void(const DrawnShapes&)> capture_again;

  // Used by who runs it.
  int server_failures = 0;  // of runs in which a parameter server did not do its part
  int refusals = 0;         // by workers that did not run it at all
  int captures = 0;

  // Of one that will not run any more: gives up what it holds of the user's.
  void release() {
    tensors.clear();
    resources.clear();
    capture_again = nullptr;
  }

  uint64_t bytes() const {
    uint64_t bytes = 0;
    for (const at::Tensor& tensor : tensors) bytes += tensor.defined() ? tensor.nbytes() : 0;
    return bytes;
  }

 private:
  friend class ClosureQueue;
  std::atomic<bool> decided_ = false;
  // Under the lock of the queue.
  std::optional<ClosureResult> result_;
  int worker_ = -1;  // that has it
};

using ClosurePtr = std::shared_ptr<Closure>;

}  // namespace trireme::internal
