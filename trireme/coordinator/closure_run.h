#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

#include "absl/status/status.h"
#include "trireme/base/clock.h"
#include "trireme/base/executor.h"
#include "trireme/coordinator/allotted_source.h"
#include "trireme/coordinator/closure_batch.h"
#include "trireme/coordinator/closure_environment.h"
#include "trireme/coordinator/hosted_function.h"
#include "trireme/coordinator/received_closure.h"
#include "trireme/coordinator/result_sums.h"
#include "trireme/function/draws.h"
#include "trireme/ps/ps_step_run.h"

namespace trireme::internal {

// Runs one closure of a batch:
//
//   begin -> draw -> pull -> compute -> push, once for each round -> end
//     ^                                                       |
//     +-------------------- if it repeats --------------------+
//
// Not thread-safe: one thread at a time works on it. Holds its batch. Kept alive by the work or the
// call to the parameter servers that it waits for.
class ClosureRun : public std::enable_shared_from_this<ClosureRun> {
 public:
  // `index` is its place in the batch. `functions` has the function of the closure, followed by its
  // variants.
  ClosureRun(std::shared_ptr<ClosureBatch> batch, size_t index,
             std::vector<HostedFunctionPtr> functions, ReceivedClosure call,
             AllottedSources sources);

  // Returns true if the run may begin now. Otherwise it begins on the executor when it has its
  // turn.
  static bool enter(const std::shared_ptr<ClosureRun>& run);
  bool takes_turns() const { return functions_[0]->takes_turns; }
  // Begin the run on this thread, and on the executor.
  void begin();
  static void begin_later(const std::shared_ptr<ClosureRun>& run);

 private:
  ClosureEnvironment& environment() const { return batch_->environment(); }
  uint64_t seed() const;
  // Returns a token that stops the run: by any request once it has begun to push, and before that
  // also by a request to stop before the push.
  std::stop_token stop_token() const {
    return begun_ ? batch_->stop_token() : batch_->unpushed_stop_token();
  }
  bool stopped() const { return stop_token().stop_requested(); }

  // Draws the elements of this repetition and selects the function that takes them. Returns false
  // if no function does.
  bool draw();
  // Returns the inputs of the graph: tensors of the closure and elements, in their order.
  std::vector<at::Tensor> inputs() const;
  // Returns a tensor for each variable that came with the closure, undefined for the others.
  std::vector<at::Tensor> own_variables() const;
  void compute(std::vector<at::Tensor> pulled);
  void call_native();
  void push(size_t round);
  // Marks the elements of this repetition as used, so that they are not put back any more.
  void consume();
  void end_repetition(std::vector<at::Tensor> results);
  // Ends the run after a pull or a push has failed.
  void end_after_call(const absl::Status& error);
  void end(const absl::Status& error);
  void end(RunResult answer);
  // Adds the repetitions that are done and their sums to an answer of a run that did not end.
  RunResult with_progress(RunResult answer) const;

  // Runs the work on the executor. Ends the closure if the executor has ended.
  void continue_with(Work work);
  void note_time(Duration time);
  absl::Status cancelled() const;
  // Converts an error of the user's function so that the coordinator does not take it for a
  // cancellation or a failure of a parameter server.
  absl::Status as_user_error(const absl::Status& error) const;

  const std::shared_ptr<ClosureBatch> batch_;
  const size_t index_;
  const std::vector<HostedFunctionPtr> functions_;
  const HostedFunction* function_;  // The element of `functions_` that this repetition uses.
  const ReceivedClosure call_;
  const AllottedSources sources_;
  uint32_t repetition_;  // Number of repetitions that are done.
  ResultSums sums_;      // Sums of their results, if the closure adds them up.
  // True once the closure may have had an effect: it has pushed, or has used elements in an earlier
  // repetition. From then on it runs to its end.
  bool begun_;
  std::optional<Draws> draws_;      // Elements that are drawn and not consumed.
  std::optional<Time> turn_began_;  // Time at which the run first began.
  // Variables that the last push has read for the next repetition.
  struct PulledAhead {
    const HostedFunction* function = nullptr;  // The function that needs them; null if none.
    std::vector<at::Tensor> contents = {};
  };
  PulledAhead pulled_ahead_;
  Duration drawing_ = {};           // Time that this repetition took to draw.
  Duration busy_ = {};              // Time of all repetitions for drawing and operators.
  std::optional<PsStepRun> steps_;  // State of this repetition.
};

}  // namespace trireme::internal
