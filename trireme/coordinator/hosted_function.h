#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/average_duration.h"
#include "trireme/cluster/device_spec.h"
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

// A function that a coordinator has registered with a worker, ready to run. Its counterpart on the
// coordinator's side is a ClosureFunction. Immutable once it is made, except for the estimated
// time. Shared by the runs that use it.
struct HostedFunction {
  std::string name;
  std::shared_ptr<const PsStep> steps;
  const NativeBody* native = nullptr;  // Set for a native function; `steps` is null then.
  // One for each variable of the graph; nullopt if its value comes with each closure.
  std::vector<std::optional<PsVariable>> variables;
  std::vector<ClosureDraw> draws;
  size_t inputs = 0;        // Number of inputs, including those that are drawn.
  size_t drawn_inputs = 0;  // Number of inputs that are drawn.
  size_t own = 0;           // Number of variables whose values come with each closure.
  // True if it both reads and changes variables on servers.
  bool takes_turns = false;
  // A sentence for each device that it names and the worker does not have.
  std::vector<std::string> missing_devices;
  // Estimated time for drawing and operators.
  mutable AverageDuration usual_time{std::chrono::milliseconds(1)};

  // Returns an error unless the call has as many tensors and resources as the function takes.
  absl::Status check(const ReceivedClosure& call) const;
};

using HostedFunctionPtr = std::shared_ptr<const HostedFunction>;

// Compiles a captured function for a worker with these devices; devices that it names and the
// worker does not have are replaced. `task` is the name of the worker. `layouts` has one for each
// variable, nullopt for variables that are not on `servers`. Blocks while it looks up the variables
// on the servers.
absl::StatusOr<HostedFunctionPtr> make_hosted_function(
    std::shared_ptr<const GraphData> graph,
    const std::vector<std::optional<VariableLayout>>& layouts, std::vector<ClosureDraw> draws,
    const DeviceList& devices, const std::string& task, PsClient& servers);

// Finds a native function of this binary. `task` is the name of this worker, for errors.
absl::StatusOr<HostedFunctionPtr> make_hosted_native_function(const std::string& name,
                                                              const std::string& task);

}  // namespace trireme::internal
