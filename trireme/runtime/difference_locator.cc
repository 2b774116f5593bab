// Operators are compared by what they return. The eager run and a replay in this process are both
// observed below autograd, where they call the same operators, except that a graph has no nodes
// whose results are not used. So each node is looked up among the eager calls that follow the call
// of the node before it: a call of the same operator with the same results. The first node without
// one is the first that differs. A call that is skipped in vain can only be that of an operator
// whose results are not used, or an equal one, so nodes before the difference are always found.
#include "trireme/runtime/difference_locator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/capture/capture.h"
#include "trireme/capture/operator_hook.h"
#include "trireme/capture/self_check.h"
#include "trireme/exec/replay.h"
#include "trireme/exec/step_generator.h"
#include "trireme/function/draw_discovery.h"
#include "trireme/graph/describe_node.h"
#include "trireme/graph/graph_builder.h"
#include "trireme/graph/operators.h"

namespace trireme::internal {
namespace {

// A call of an operator, with copies of what it returned and wrote.
struct ObservedCall {
  c10::OperatorName op;
  std::vector<at::Tensor> tensors;
};

// Records the operators of a thread below autograd, where a capture sees them too.
class CallRecorder final : public OperatorHook {
 public:
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
           torch::jit::Stack* stack) override {
    // A composite operator calls other operators, which come here in turn.
    if (is_composite(op)) return op.redispatchBoxed(keys_below_hook(keys), stack);
    const c10::impl::ExcludeDispatchKeyGuard no_reentry(kCaptureKey);
    const std::vector<c10::IValue> arguments(stack->end() - op.schema().arguments().size(),
                                             stack->end());
    op.redispatchBoxed(keys_below_hook(keys), stack);
    ObservedCall& call = calls_.emplace_back(ObservedCall{op.operator_name(), {}});
    if (makes_uninitialized(op)) return;
    const size_t results = op.schema().returns().size();
    for (size_t i = 0; i < results; ++i) {
      if (!is_lstm_workspace(op, i)) keep((*stack)[stack->size() - results + i], call);
    }
    for (int i : writable_arguments(op)) {
      if (!takes_lstm_workspace(op, i)) keep(arguments[i], call);
    }
  }

  const std::vector<ObservedCall>& calls() const { return calls_; }

 private:
  static void keep(const c10::IValue& value, ObservedCall& call) {
    const at::NoGradGuard no_gradients;
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      call.tensors.push_back(tensor.defined() ? tensor.detach().clone() : tensor);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) keep(tensor, call);
    }
  }

  std::vector<ObservedCall> calls_;
};

// Returns the name without namespace and overload: a graph has the overload with a generator of a
// random operator, and operators of its own for some of LibTorch's.
std::string base_name(const c10::OperatorName& op) {
  return op.name.substr(op.name.find("::") + 2);
}

bool same_call(const ObservedCall& a, const ObservedCall& b, double tolerance) {
  if (base_name(a.op) != base_name(b.op) || a.tensors.size() != b.tensors.size()) return false;
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    if (relative_difference(a.tensors[i], b.tensors[i]) > tolerance) return false;
  }
  return true;
}

// Returns the first node of the plan whose results no eager call gave; nullopt if there is none.
std::optional<size_t> first_different_node(const Plan& plan,
                                           const std::vector<ObservedCall>& replayed,
                                           const std::vector<ObservedCall>& eager,
                                           double tolerance) {
  size_t next = 0, next_eager = 0;
  for (size_t node = 0; node < plan.nodes.size(); ++node, ++next) {
    // A replay also calls operators that check arguments.
    while (next < replayed.size() && replayed[next].op != plan.nodes[node].op.operator_name()) {
      ++next;
    }
    if (next == replayed.size()) return std::nullopt;
    while (next_eager < eager.size() && !same_call(replayed[next], eager[next_eager], tolerance)) {
      ++next_eager;
    }
    if (next_eager++ == eager.size()) return node;
  }
  return std::nullopt;
}

// Captures the body again on the elements that the step draws.
Captured capture_body_again(const FunctionStep& step, const FunctionCall& call) {
  std::vector<size_t> counts;
  for (const Draw& draw : step.draws) counts.push_back(draw.elements);
  DrawnCall drawn(call);
  drawn.adjust_up_to(counts);
  return DrawDiscovery(step.function, drawn).run([&] {
    DrawingBody body(step.function, drawn);
    return capture(std::ref(body), drawn.inputs(),
                   {.name = step.function, .seed = step.seed, .step = step.step});
  });
}

// Returns true if a node uses a constant that has other contents in another capture.
bool uses_changed_constant(const GraphData& graph, const proto::Node& node,
                           const GraphData& other) {
  bool changed = false;
  for (const proto::Argument& argument : node.arguments()) {
    for_each_value(argument, [&](int64_t value) {
      const proto::Value& used = graph.def.values(static_cast<int>(value));
      if (used.source() != proto::Value::CONSTANT) return;
      changed |=
          used.index() >= other.constants.size() ||
          relative_difference(graph.constants[used.index()], other.constants[used.index()]) != 0;
    });
  }
  return changed;
}

// Returns a description of the first operator that another capture records differently; empty if
// all are the same.
std::string first_changed_operator(const Plan& plan, const GraphData& other) {
  const proto::GraphDef &before = plan.graph->def, &after = other.def;
  for (int i = 0; i < before.nodes_size(); ++i) {
    if (i >= after.nodes_size() ||
        before.nodes(i).SerializeAsString() != after.nodes(i).SerializeAsString() ||
        uses_changed_constant(*plan.graph, before.nodes(i), other)) {
      return describe_node(plan, i);
    }
  }
  if (after.nodes_size() == before.nodes_size()) return "";
  return absl::StrCat("operator '", after.nodes(before.nodes_size()).op(), "' (node ",
                      before.nodes_size(), ")");
}

// Captures the body again and compares the graphs. Returns nullopt if they are equal.
std::optional<DifferenceCause> compare_with_new_capture(const FunctionStep& replayed,
                                                        const RepeatableStep& step) {
  Captured old, again;
  old.graph = std::make_shared<GraphData>(*replayed.plan->graph);
  old.variables = replayed.variables;
  step.restart();
  try {
    again = capture_body_again(replayed, step.call());
  } catch (const std::exception& error) {
    return DifferenceCause{
        "", absl::StrCat("in this step the function can no longer be captured: ", error.what())};
  }
  const absl::Status status = check_equal_captures(old, again);
  if (status.ok()) return std::nullopt;
  return DifferenceCause{
      first_changed_operator(*replayed.plan, *again.graph),
      absl::StrCat("the program has changed since the function was captured: a number, a tensor "
                   "or a branch of it is not the same. Captured again in this step: ",
                   to_error(status).message())};
}

// Runs the step as eager code and as a replay in this process, and returns the first node whose
// results differ; nullopt if there is none.
std::optional<size_t> compare_operators(const FunctionStep& replayed, const RepeatableStep& step,
                                        double tolerance) {
  CallRecorder eager, captured;
  step.restart();
  {
    const HookScope hook(&eager);
    step.run_eagerly();
  }
  const std::vector<at::Tensor> variables = step.variables(replayed);
  {
    const HookScope hook(&captured);
    throw_if_error(replay(*replayed.plan, replayed.inputs, variables,
                          make_step_generator(replayed.seed, replayed.step))
                       .status());
  }
  return first_different_node(*replayed.plan, captured.calls(), eager.calls(), tolerance);
}

// Returns a description of the last operator that makes or writes the object; empty if there is
// none.
std::string last_operator_of(const FunctionStep& step, const DifferentObject& object) {
  const Plan& plan = *step.plan;
  const int64_t output =
      object.result < 0 ? -1 : plan.graph->def.outputs(static_cast<int>(object.result));
  for (size_t node = plan.nodes.size(); node-- > 0;) {
    for (const auto& [variable, writes] : plan.nodes[node].variables) {
      if (writes && step.variables[variable].get() == object.variable) {
        return describe_node(plan, node);
      }
    }
    for (const NodePlan::Result& result : plan.nodes[node].results) {
      if (output >= 0 &&
          (result.value == output || std::ranges::find(result.list, output) != result.list.end())) {
        return describe_node(plan, node);
      }
    }
  }
  return "";
}

}  // namespace

double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (!a.defined() || !b.defined()) return a.defined() == b.defined() ? 0 : kInfinity;
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return kInfinity;
  const at::NoGradGuard no_gradients;
  const auto wide = [](const at::Tensor& tensor) {
    const at::Tensor dense = tensor.layout() == at::kStrided ? tensor : tensor.to_dense();
    return dense.detach().to(dense.is_complex() ? at::kComplexDouble : at::kDouble);
  };
  const at::Tensor x = wide(a), y = wide(b);
  const at::Tensor nan = at::isnan(y);
  if (!nan.equal(at::isnan(x))) return kInfinity;
  // Infinity minus infinity is NaN, so equal elements are left out of the difference.
  const at::Tensor zero = at::zeros_like(y);
  const double difference =
      at::where(nan.logical_or(x.eq(y)), zero, x.sub(y)).norm().item<double>();
  if (difference == 0) return 0;
  return difference / at::where(at::isfinite(y), y, zero).norm().item<double>();
}

DifferenceCause locate_difference(const RepeatableStep& step, const DifferentObject& object,
                                  double tolerance, bool in_session) {
  try {
    step.restart();
    const auto replayed = step.preview();
    if (auto found = compare_with_new_capture(*replayed, step)) return *found;
    if (const auto node = compare_operators(*replayed, step, tolerance)) {
      return {describe_node(*replayed->plan, *node),
              "captured again, the function gives the same graph, but in a replay this operator "
              "returns something else than in eager code. It depends on memory that is read or "
              "written without an operator (through data_ptr or an accessor), on random numbers "
              "of the program's own, or on the order in which threads add numbers; then ask for a "
              "larger tolerance"};
    }
    const std::string where =
        in_session
            ? "in this process a replay of the graph gives what eager code gives, so the "
              "difference arises on the tasks of the session, where operators cannot be compared"
            : "the difference did not occur again when the step was repeated, so the function "
              "depends on something that changes from call to call and is not in its graph";
    return {last_operator_of(*replayed, object),
            absl::StrCat(where,
                         ". The operator that is named is the last that makes the object "
                         "that differs")};
  } catch (const std::exception& error) {
    return {"", absl::StrCat("unknown, since the step could not be repeated: ", error.what())};
  }
}

}  // namespace trireme::internal
