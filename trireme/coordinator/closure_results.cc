#include "trireme/coordinator/closure_results.h"

#include <utility>

#include "trireme/base/status.h"
#include "trireme/coordinator/allotted_elements.h"
#include "trireme/coordinator/closure_service.h"

namespace trireme::internal {
namespace {

// Sorts a closure that found the end of the data.
void sort_ended(ClosurePtr closure, const ClosureResponse::End& end, const absl::Status& error,
                ClosureResults& sorted) {
  const bool again = settle_end(*closure, {.draw = end.draw(),
                                           .number = end.number(),
                                           .is_beyond = end.is_beyond(),
                                           .runs = end.runs()});
  if (again) {
    (closure->runs_done > 0 ? sorted.pushed : sorted.unpushed).push_back(std::move(closure));
    return;
  }
  use_elements(*closure);  // Completed runs have used the elements that are left.
  ClosureResult result = result_at_end(*closure, end.draw(), error);
  sorted.finished.push_back({std::move(closure), std::move(result)});
}

}  // namespace

ClosureResults sort_results(std::vector<ClosurePtr> closures, const RunClosuresResponse& answer,
                            const std::vector<at::Tensor>& tensors, const PsWatch& servers) {
  ClosureResults sorted;
  TensorReader reader(tensors);
  for (int i = 0; i < answer.results_size(); ++i) {
    ClosurePtr& closure = closures[i];
    const ClosureResponse& response = answer.results(i);
    if (!response.drawn().empty()) {
      sorted.drawn.push_back({std::move(closure), &response});
      continue;
    }
    ClosureResult result = result_of(response, reader);
    if (!result.ok() && servers.is_server_failure(result.status())) {
      // A server that cannot be reached counts more than one that rejected a push.
      if (sorted.server_error.ok() || servers.is_rejection(sorted.server_error)) {
        sorted.server_error = result.status();
      }
      sorted.without_server.push_back(std::move(closure));
    } else if (!result.ok() && error_code(result.status()) == ErrorCode::kCancelled) {
      // The worker stops, or the queue cancels it or is being paused.
      (response.nothing_pushed() ? sorted.unpushed : sorted.pushed).push_back(std::move(closure));
    } else if (!result.ok() && response.has_end()) {
      sort_ended(std::move(closure), response.end(), result.status(), sorted);
    } else {
      use_elements(*closure);
      sorted.finished.push_back({std::move(closure), std::move(result)});
    }
  }
  return sorted;
}

}  // namespace trireme::internal
