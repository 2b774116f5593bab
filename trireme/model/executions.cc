#include "trireme/model/executions.h"

#include <utility>

#include "trireme/base/error.h"
#include "trireme/model/figure_sums.h"

namespace trireme::internal {
namespace {

// Results are taken in order, and the oldest may be that of a slow worker. So more executions are
// under way than workers need at once, for the others to go on meanwhile.
constexpr int64_t kAhead = 4;

}  // namespace

void join_quietly(StepRunner& runner) {
  try {
    runner.join();
  } catch (const Error&) {
  }
}

Executions::Executions(StepRunner& runner)
    : runner_(runner), most_(runner.runs_here() ? 1 : kAhead * runner.runs_at_once()) {}

void Executions::start(const StepFunction& function, const std::shared_ptr<StepData>& data,
                       int64_t steps) {
  started_.push_back({runner_.run(function, data, static_cast<int>(steps)), steps});
}

std::optional<Executions::Result> Executions::take() {
  if (started_.empty()) return std::nullopt;
  if (started_.size() < most_ && !started_.front().sums.ready()) return std::nullopt;
  return wait();
}

std::optional<Executions::Result> Executions::wait() {
  if (started_.empty()) return std::nullopt;
  const Started oldest = std::move(started_.front());
  started_.pop_front();
  Result result{.sums = oldest.sums.wait(), .asked = oldest.steps, .steps = 0};
  result.steps = FigureSums::steps_of(result.sums);
  return result;
}

}  // namespace trireme::internal
