#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trireme/capture/capture.h"

// Checks that a captured graph does what the step does.
namespace trireme::internal {

// Returns an error if the two graphs differ, constants included. It names the first operator that
// differs, and how.
absl::Status check_equal_captures(const Captured& first, const Captured& second);

// Replays a captured graph from the state in which its capture started. Returns an error if outputs
// or variables differ from those of the captured run.
absl::Status check_replay(const Plan& plan, const Captured& captured,
                          const CaptureOptions& options);

// Returns true if both tensors hold the same numbers, up to rounding: parallel kernels do not fix
// the order in which they add.
bool nearly_equal(const at::Tensor& a, const at::Tensor& b);

// A captured graph and the plan that it compiles to. Arguments, results and contents of variables
// of the captured run are no longer in it.
struct CheckedCapture {
  Captured captured;
  std::shared_ptr<const Plan> plan;
};
// Captures a step and compiles its graph. If `check` is true, it also captures the step twice more
// on other numbers, compares the graphs, and replays the graph on the numbers of each capture. That
// is three runs of the step and three replays in all, and up to two runs more if the step throws on
// other numbers. Throws Error if the step cannot be captured or a check fails.
CheckedCapture capture_and_check(const StepBody& step, const std::vector<at::Tensor>& inputs,
                                 const CaptureOptions& options, bool check);

}  // namespace trireme::internal
