#include "trireme/coordinator/hosted_function.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/placement/existing_devices.h"
#include "trireme/ps/ps_step_device.h"

namespace trireme::internal {
namespace {

// Returns the number of inputs that are drawn, or an error if the draws overlap or exceed the
// inputs.
absl::StatusOr<size_t> count_drawn_inputs(const std::vector<ClosureDraw>& draws, size_t inputs) {
  size_t drawn = 0;
  size_t end = 0;
  for (const ClosureDraw& draw : draws) {
    size_t tensors = 0;
    for (const ElementSpec& element : draw.elements) tensors += element.size();
    if (draw.first_input < end || draw.first_input + tensors > inputs) {
      return make_status(ErrorCode::kInvalidArgument,
                         "the draws of the function overlap or exceed its inputs");
    }
    end = draw.first_input + tensors;
    drawn += tensors;
  }
  return drawn;
}

}  // namespace

absl::Status HostedFunction::check(const ReceivedClosure& call) const {
  const size_t tensors = inputs - drawn_inputs + own;
  if (call.tensors.size() != tensors) {
    return make_status(ErrorCode::kInvalidArgument,
                       absl::StrCat("function '", name, "' takes ", tensors, " tensors, but ",
                                    call.tensors.size(), " were sent"));
  }
  if (call.resources.size() != draws.size()) {
    return make_status(ErrorCode::kInvalidArgument,
                       absl::StrCat("function '", name, "' draws from ", draws.size(),
                                    " iterators, but ", call.resources.size(), " were named"));
  }
  return absl::OkStatus();
}

absl::StatusOr<HostedFunctionPtr> make_hosted_function(
    std::shared_ptr<const GraphData> graph,
    const std::vector<std::optional<VariableLayout>>& layouts, std::vector<ClosureDraw> draws,
    const DeviceList& devices, const std::string& task, PsClient& servers) {
  TRIREME_ASSIGN_OR_RETURN(
      ExistingDevices existing,
      use_existing_devices(
          std::move(graph), devices,
          absl::StrCat(task, " has ", short_device_names(devices.names(TaskId())))));
  TRIREME_ASSIGN_OR_RETURN(const std::shared_ptr<const Plan> plan,
                           compile(std::move(existing.graph)));
  std::vector<bool> on_servers;
  std::vector<VariableLayout> wanted;
  for (const auto& layout : layouts) {
    on_servers.push_back(layout.has_value());
    if (layout.has_value()) wanted.push_back(*layout);
  }
  TRIREME_ASSIGN_OR_RETURN(PsStep steps, make_ps_step(*plan, on_servers));
  TRIREME_RETURN_IF_ERROR(assign_to_worker(devices, steps));
  TRIREME_ASSIGN_OR_RETURN(const std::vector<PsVariable> opened, servers.open(wanted));
  auto function = std::make_shared<HostedFunction>();
  auto next = opened.begin();
  for (bool there : on_servers) {
    function->variables.push_back(there ? std::optional(*next++) : std::nullopt);
  }
  function->name = plan->graph->def.name();
  function->missing_devices = std::move(existing.missing);
  function->inputs = plan->graph->def.inputs();
  TRIREME_ASSIGN_OR_RETURN(function->drawn_inputs, count_drawn_inputs(draws, function->inputs));
  function->draws = std::move(draws);
  function->own = layouts.size() - wanted.size();
  function->takes_turns =
      !steps.rounds.empty() && !(steps.pulled.empty() && steps.row_pulls.empty());
  function->steps = std::make_shared<const PsStep>(std::move(steps));
  return function;
}

absl::StatusOr<HostedFunctionPtr> make_hosted_native_function(const std::string& name,
                                                              const std::string& task) {
  const NativeBody* const native = find_native_function(name);
  if (native == nullptr) {
    return make_status(ErrorCode::kFailedPrecondition,
                       "this worker's binary has no native function of this name; run the worker "
                       "with the client program's own binary, which must make the function before "
                       "it serves",
                       {task, absl::StrCat("function '", name, "'")});
  }
  auto function = std::make_shared<HostedFunction>();
  function->name = name;
  function->native = native;
  function->inputs = native->arguments;
  return function;
}

}  // namespace trireme::internal
