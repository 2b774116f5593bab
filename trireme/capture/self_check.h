#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trireme/capture/capture.h"

// How a capture convinces itself that its graph is the step.
namespace trireme::internal {

// Equal graphs, constants included. The error names the first operator that differs and how.
absl::Status check_equal_captures(const Captured& first, const Captured& second);

// Replays a captured graph from where its capture started and compares outputs and variables.
absl::Status check_replay(const Plan& plan, const Captured& captured,
                          const CaptureOptions& options);

// The same numbers, up to the rounding of sums whose order a parallel kernel does not fix.
bool nearly_equal(const at::Tensor& a, const at::Tensor& b);

// Captures with all checks: again on other numbers, twice, and replays each from where it started.
// Throws Error. Costs about ten runs of the step, once.
struct CheckedCapture {
  Captured captured;
  std::shared_ptr<const Plan> plan;
};
CheckedCapture capture_and_check(const StepBody& step, const std::vector<at::Tensor>& inputs,
                                 const CaptureOptions& options, bool check);

}  // namespace trireme::internal
