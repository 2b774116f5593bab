#include "trireme/function/captured_graph.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/error.h"
#include "trireme/base/status.h"
#include "trireme/base/warn_once.h"
#include "trireme/capture/device_request.h"
#include "trireme/function/worker_values.h"
#include "trireme/placement/existing_devices.h"

namespace trireme::internal {
namespace {

// Describes the first part of the graph that the program itself cannot run; empty if there is none.
std::string remote_part(const proto::GraphDef& def) {
  const auto remote = [](const std::string& device) {
    return !device.empty() && is_remote(DeviceSpec::parse(device));
  };
  for (const proto::Variable& variable : def.variables()) {
    if (remote(variable.device())) {
      return absl::StrCat("variable '", variable.name(), "' on '", variable.device(), "'");
    }
  }
  for (const proto::Node& node : def.nodes()) {
    if (remote(node.device())) {
      return absl::StrCat("operator '", node.op(), "' on '", node.device(), "'");
    }
  }
  return "";
}

// Returns the backend that the variables live in; null if all live in the program.
std::shared_ptr<VariableBackend> backend_of(
    const std::string& function, const std::vector<std::shared_ptr<VariableRecord>>& variables) {
  std::shared_ptr<VariableBackend> backend;
  for (const auto& variable : variables) {
    if (variable->backend == nullptr) continue;
    if (backend != nullptr && backend != variable->backend) {
      throw Error(ErrorCode::kInvalidArgument,
                  absl::StrCat("it uses variables of two strategies, '", variable->name, "' on ",
                               absl::StrJoin(variable->backend->devices(*variable), ", "),
                               " among them; a function can use variables of one strategy only"),
                  {"", absl::StrCat("function '", function, "'")});
    }
    backend = variable->backend;
  }
  return backend;
}

// Returns true if the tensors that the graph was captured with are on an accelerator. Then its
// operators run where they are.
bool runs_on_its_tensors(const CapturedGraph& graph) {
  return !graph.inputs_on_cpu || !std::ranges::all_of(graph.variables, [](const auto& variable) {
    return variable->tensor.is_cpu();
  });
}

std::shared_ptr<const DevicePlan> plan_for_program(const CapturedGraph& graph) {
  const proto::GraphDef& def = graph.plan->graph->def;
  if (runs_on_its_tensors(graph)) {
    const auto named = std::ranges::find_if(
        def.nodes(), [](const proto::Node& node) { return !node.device().empty(); });
    if (named != def.nodes().end()) {
      warn_once(absl::StrCat("function '", def.name(), "': the scope of device '", named->device(),
                             "' has no effect, since tensors of the function are on an accelerator "
                             "already, and its operators run where they are. Give it tensors of "
                             "the CPU, or move them with to()"));
    }
    return nullptr;
  }
  DeviceGraphOptions options{.default_device = graph.default_device};
  options.variable_devices.assign(graph.variables.size(), {c10::Device(c10::kCPU)});
  return plan_devices(*graph.plan, options);
}

}  // namespace

const DevicePlan* CapturedGraph::devices() const {
  std::call_once(planned_, [&] { devices_ = plan_for_program(*this); });
  return devices_.get();
}

std::shared_ptr<const GraphData> placed_in_program(std::shared_ptr<const GraphData> graph) {
  if (!remote_part(graph->def).empty()) return graph;
  graph = value_or_throw(use_devices_of_program(std::move(graph))).graph;
  std::shared_ptr<GraphData> changed;
  for (int i = 0; i < graph->def.variables_size(); ++i) {
    const proto::Variable& variable = graph->def.variables(i);
    if (variable.device().empty() ||
        DeviceSpec::parse(variable.device()).type != DeviceType::kGpu) {
      continue;
    }
    if (changed == nullptr) changed = std::make_shared<GraphData>(*graph);
    changed->def.add_scopes(absl::StrCat(
        variable.device_reason() == 0 ? "" : graph->def.scopes(variable.device_reason() - 1),
        "; without a session it is in the program's memory"));
    changed->def.mutable_variables(i)->set_device("/cpu:0");
    changed->def.mutable_variables(i)->set_device_reason(changed->def.scopes_size());
  }
  return changed == nullptr ? graph : changed;
}

bool CapturedGraph::is_valid() const {
  for (size_t i = 0; i < variables.size(); ++i) {
    if (variables[i]->tensor.storage().unsafeGetStorageImpl() != storages[i]._unsafe_get_target()) {
      return false;
    }
    if (variables[i]->tensor.requires_grad() != need_gradients[i]) return false;
  }
  for (const ExternalTensor& external : externals) {
    if (external.changed()) return false;
  }
  for (const TensorObject& object : external_objects) {
    if (object.use_count() == 0) return false;
  }
  if (modules.lost_module_with(storages)) return false;
  return true;
}

std::shared_ptr<const CapturedGraph> make_captured_graph(const std::string& function,
                                                         CheckedCapture checked,
                                                         ModuleStates modules,
                                                         FunctionCall::Shape shape,
                                                         std::vector<bool> accepts_end) {
  auto graph = std::make_shared<CapturedGraph>();
  graph->inputs_on_cpu = std::ranges::all_of(checked.captured.inputs, [](const at::Tensor& input) {
    return !input.defined() || input.is_cpu();
  });
  graph->default_device = default_device();
  graph->modules = std::move(modules);
  graph->plan = std::move(checked.plan);
  graph->variables = std::move(checked.captured.variables);
  graph->externals = std::move(checked.captured.externals);
  graph->external_objects = std::move(checked.captured.external_objects);
  graph->shape = std::move(shape);
  graph->accepts_end = std::move(accepts_end);
  graph->remote = remote_part(graph->plan->graph->def);
  graph->backend = backend_of(function, graph->variables);
  if (graph->backend == nullptr && combines_over_workers(*graph->plan->graph)) {
    throw Error(ErrorCode::kFailedPrecondition,
                "it combines values of several workers, but uses no variable of their strategy, so "
                "it would run in this process alone; use a variable that was made in "
                "strategy.scope(), or call strategy.run() and reduce() outside of the function",
                {"", absl::StrCat("function '", function, "'")});
  }
  for (const auto& variable : graph->variables) {
    graph->storages.push_back(variable->tensor.storage().getWeakStorageImpl());
    graph->need_gradients.push_back(variable->tensor.requires_grad());
  }
  return graph;
}

}  // namespace trireme::internal
