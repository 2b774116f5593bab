#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "trireme/coordinator/closure.h"
#include "trireme/coordinator/received_closure.h"

// The coordinator decides which elements a closure draws when it sends the closure to a worker. A
// closure that has to run again, because its worker was lost, keeps its elements, whichever worker
// runs it. So all its attempts compute on the same data, and each element is used once.
//
// If the workers share a dataset, only drawing shows where a range of it ends. A closure that finds
// the end is sent again with other elements. If all elements are allotted, it waits until the
// others have been used. So the end of the data is reported after everything before it was done.
namespace trireme::internal {

// Closures that are about to be sent to a worker.
struct AllottedClosures {
  std::vector<ClosurePtr> ready;    // They have their elements.
  std::vector<ClosurePtr> waiting;  // They are passed to `requeue` once there may be elements.
  struct Ended {
    ClosurePtr closure;
    size_t draw;  // Index of the draw for which there are no elements.
  };
  std::vector<Ended> ended;  // There are no more elements for them.
};

using Requeue = std::function<void(const ClosurePtr&)>;

// Allots the next elements to the draws of closures that are about to be sent to the worker. A
// closure that has elements keeps them. `requeue` is called on another thread.
AllottedClosures allot_elements(std::vector<ClosurePtr> closures, int worker,
                                const Requeue& requeue);
// Notes that the closure has used its elements.
void use_elements(Closure& closure);
// Notes that the closure has completed its first `runs` runs, whose results have these sums, and
// has used their elements. It keeps the others.
void use_elements_of_runs(Closure& closure, uint32_t runs, std::vector<at::Tensor> sums);
// Returns the elements of a closure that has not used them.
void return_elements(Closure& closure);
// Returns the elements of closures that the worker has not run, unless another one may have.
void return_elements_of_unsent(const std::vector<ClosurePtr>& closures);

// Checks the end of the data that a worker has reported for a closure. Returns an error if it is
// not one of the elements that the closure was to draw, or if that element certainly exists.
absl::Status check_end(const Closure& closure, const DataEnd& end);
// Returns the elements of a closure that found the end of the data. Returns true if the closure has
// to be sent again, with other elements.
bool settle_end(Closure& closure, const DataEnd& end);
// Returns the result of a closure that found the end of the data in a draw. `error` is the error
// for functions that do not accept the end, as next_optional() does.
ClosureResult result_at_end(Closure& closure, size_t draw, const absl::Status& error);
// Returns the error of a closure for which there are no more elements in a shared dataset.
absl::Status no_more_elements(const Closure& closure, size_t draw);

}  // namespace trireme::internal
