#include "trireme/coordinator/closure_results.h"

#include <algorithm>
#include <utility>

#include "trireme/base/status.h"
#include "trireme/coordinator/allotted_elements.h"
#include "trireme/coordinator/closure_service.h"
#include "trireme/coordinator/element_account.h"

namespace trireme::internal {
namespace {

// Times that a closure is sent to workers that are at the end of their own datasets.
constexpr int kMostEnds = 64;

// Returns true if a closure that found the end of a worker's own dataset should run on another
// worker, which has more data. Without this, a worker that is done would take all closures from one
// that is slower.
bool may_move_on(Closure& closure, size_t draw) {
  const std::vector<bool>& accepted = closure.current->accepts_end;
  return draw < accepted.size() && accepted[draw] && closure.runs_done == 0 &&
         ++closure.ends <= kMostEnds;
}

// Notes the runs that the closure completed before it stopped. Their sums are next in `reader`.
absl::Status settle_runs(Closure& closure, const ClosureResponse& response, TensorReader& reader) {
  TRIREME_ASSIGN_OR_RETURN(std::vector<at::Tensor> sums,
                           reader.next(response.tensors(), response.undefined()));
  use_elements_of_runs(closure, response.runs_done(), std::move(sums));
  return absl::OkStatus();
}

// Sorts a closure that found the end of the data.
void sort_ended(ClosurePtr closure, const ClosureResponse::End& end, const absl::Status& error,
                const std::string& task, ClosureResults& sorted) {
  const size_t draw = end.draw();
  const DataEnd reported{.draw = draw, .number = end.number(), .is_beyond = end.is_beyond()};
  if (absl::Status wrong = check_end(*closure, reported); !wrong.ok()) {
    use_elements(*closure);
    sorted.finished.push_back({std::move(closure), with_origin(wrong, {task, ""})});
    return;
  }
  const bool is_own = draw < closure->allotted.size() && !closure->accounts[draw]->is_shared();
  const int owner = is_own ? closure->allotted[draw].worker : 0;
  bool again = settle_end(*closure, reported);
  if (again && is_own) {
    again = may_move_on(*closure, draw);
    if (again) closure->avoided.add(owner, Time::max());
  }
  if (again) {
    (closure->runs_done > 0 ? sorted.pushed : sorted.unpushed).push_back(std::move(closure));
    return;
  }
  ClosureResult result = result_at_end(*closure, end.draw(), error);
  sorted.finished.push_back({std::move(closure), std::move(result)});
}

}  // namespace

ClosuresThatRan closures_that_ran(const std::vector<ClosurePtr>& closures,
                                  const RunClosuresResponse& answer) {
  ClosuresThatRan ran;
  for (size_t i = 0; i < closures.size(); ++i) {
    const ClosureResponse& result = answer.results(static_cast<int>(i));
    const bool is_part = result.has_end() || !result.drawn().empty();
    const uint32_t before = closures[i]->runs_done, most = closures[i]->repeat;
    const uint32_t done = is_part ? std::min(result.runs_done(), most) : most;
    if (done <= before) continue;
    ran.runs += done - before;
    ran.closures.push_back(closures[i]);
  }
  return ran;
}

ClosureResults sort_results(std::vector<ClosurePtr> closures, const RunClosuresResponse& answer,
                            const std::vector<at::Tensor>& tensors, const PsWatch& servers,
                            const std::string& task) {
  ClosureResults sorted;
  TensorReader reader(tensors);
  for (int i = 0; i < answer.results_size(); ++i) {
    ClosurePtr& closure = closures[i];
    const ClosureResponse& response = answer.results(i);
    const bool has_drawn = !response.drawn().empty();
    const absl::Status settled = has_drawn || response.has_end()
                                     ? settle_runs(*closure, response, reader)
                                     : absl::OkStatus();
    if (settled.ok() && has_drawn) {
      sorted.drawn.push_back({std::move(closure), &response});
      continue;
    }
    ClosureResult result = settled.ok() ? result_of(response, reader) : settled;
    if (!result.ok() && servers.is_server_failure(result.status())) {
      // A server that cannot be reached counts more than one that rejected a push.
      if (sorted.server_error.ok() || servers.is_rejection(sorted.server_error)) {
        sorted.server_error = result.status();
      }
      sorted.without_server.push_back(std::move(closure));
    } else if (!result.ok() && error_code(result.status()) == ErrorCode::kCancelled) {
      // The worker stops, or the queue cancels it or is being paused.
      (response.nothing_pushed() ? sorted.unpushed : sorted.pushed).push_back(std::move(closure));
    } else if (!result.ok() && settled.ok() && response.has_end()) {
      sort_ended(std::move(closure), response.end(), result.status(), task, sorted);
    } else {
      use_elements(*closure);
      sorted.finished.push_back({std::move(closure), std::move(result)});
    }
  }
  return sorted;
}

}  // namespace trireme::internal
