#pragma once

#include <vector>

#include "absl/status/status.h"
#include "trireme/coordinator/closure.h"

// The coordinator decides which elements a closure draws when it sends the closure to a worker. A
// closure that has to run again, because its worker was lost, keeps its elements, whichever worker
// runs it. So all its attempts compute on the same data, and each element is used once.
namespace trireme::internal {

// Allots the next elements of the worker's iterators to the draws of a closure that is about to be
// sent to the worker. A closure that has elements keeps them.
void allot_elements(Closure& closure, int worker);
// Notes that the closure has used its elements.
void use_elements(Closure& closure);
// Returns the elements of a closure that has not used them.
void return_elements(Closure& closure);
// Does one of these for a closure that has ended with a result: it has used its elements unless
// they do not exist.
void settle_elements(Closure& closure, const absl::Status& result);
// Returns the elements of closures that the worker has not run, unless another one may have.
void return_elements_of_unsent(const std::vector<ClosurePtr>& closures);

}  // namespace trireme::internal
