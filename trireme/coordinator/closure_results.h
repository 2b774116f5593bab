#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trireme/coordinator/closure_queue.h"
#include "trireme/coordinator/closures.pb.h"
#include "trireme/coordinator/ps_watch.h"

namespace trireme::internal {

// The closures of a batch that a worker has answered, sorted by what is to be done with them.
struct ClosureResults {
  std::vector<ClosureQueue::Finished> finished;  // Their elements are settled.
  // To be requeued: those that may have pushed updates, and those that have not.
  std::vector<ClosurePtr> pushed, unpushed;
  // Closures that failed because the worker could not use a parameter server, and the error.
  std::vector<ClosurePtr> without_server;
  absl::Status server_error;
  // Closures whose function does not take the elements that the worker has drawn. `response` points
  // into the answer.
  struct Drawn {
    ClosurePtr closure;
    const ClosureResponse* response;
  };
  std::vector<Drawn> drawn;
};

// Closures of an answer that have run, and how often they did so together.
struct ClosuresThatRan {
  std::vector<ClosurePtr> closures;
  uint64_t runs = 0;
};
// Returns the closures without those that completed no run, because they found the end of their
// data or elements of new shapes at once: they took no time, and would make the others look cheap.
// Must be called before sort_results(), which notes the runs.
ClosuresThatRan closures_that_ran(const std::vector<ClosurePtr>& closures,
                                  const RunClosuresResponse& answer);

// Sorts the closures of a batch. `answer` has a result for each of them. `task` is the worker that
// has answered, named by errors about its answer.
ClosureResults sort_results(std::vector<ClosurePtr> closures, const RunClosuresResponse& answer,
                            const std::vector<at::Tensor>& tensors, const PsWatch& servers,
                            const std::string& task);

}  // namespace trireme::internal
