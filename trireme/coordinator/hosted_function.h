#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/usual_time.h"
#include "trireme/coordinator/native_function.h"
#include "trireme/coordinator/received_closure.h"
#include "trireme/data/element.h"
#include "trireme/graph/plan.h"
#include "trireme/ps/layout.h"
#include "trireme/ps/ps_client.h"
#include "trireme/ps/ps_step.h"
#include "trireme/ps/ps_variable.h"

namespace trireme::internal {

// The elements that a function draws from one resource.
struct ClosureDraw {
  size_t first_input = 0;
  std::vector<ElementSpec> elements;
};

// A function that a coordinator has registered with a worker, ready to run: on the coordinator's
// side it is a ClosureFunction. Does not change once it is made, but for the time that it takes;
// shared by the runs that use it.
struct HostedFunction {
  std::string name;
  std::shared_ptr<const PsStep> steps;
  const NativeBody* native = nullptr;  // in place of all else
  std::vector<std::optional<PsVariable>> variables;
  std::vector<ClosureDraw> draws;
  size_t inputs = 0;
  size_t drawn_inputs = 0;
  size_t own = 0;  // variables that come with each closure
  // True if it both reads and changes variables.
  bool takes_turns = false;
  // Time of drawing and its operators.
  mutable UsualTime usual_time{std::chrono::milliseconds(1)};

  // Returns an error unless the call brings the tensors and names the resources that it takes.
  absl::Status check(const ReceivedClosure& call) const;
};

using HostedFunctionPtr = std::shared_ptr<const HostedFunction>;

// Compiles a captured function. `layouts` has one for each variable that is on `servers`. Blocks:
// it looks them up.
absl::StatusOr<HostedFunctionPtr> make_hosted_function(
    std::shared_ptr<const GraphData> graph,
    const std::vector<std::optional<VariableLayout>>& layouts, std::vector<ClosureDraw> draws,
    PsClient& servers);

// Finds a function of this binary. `task` is this worker, for errors.
absl::StatusOr<HostedFunctionPtr> make_hosted_native_function(const std::string& name,
                                                              const std::string& task);

}  // namespace trireme::internal
