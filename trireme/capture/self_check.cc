// How a capture checks itself. A graph can be wrong in three ways that no single operator shows:
//
// - The program computed a number in C++ (a counter, a value read through data_ptr) and the graph
//   holds it as a constant. So the step is captured again, on perturbed arguments and variables.
//   The graphs must be equal, constants included. There are two perturbations, because one may
//   happen to leave a comparison in the program as it was; both also run the program again, which
//   finds counters.
// - Memory was read or written without an operator. So the plan is replayed from the state in which
//   each capture started, and must give the same outputs and variables. Uninitialised memory is
//   poisoned in these replays, so that a read of it shows.
// - Memory was read without an operator in a way that the perturbations do not change: the largest
//   of some integers, or a flag. So the last capture locks memory (recorder_checks.cc). It comes
//   last, since a thread that the step starts dies of an access to locked memory; the captures
//   before it reject most such steps with an error.
//
// A step need not accept perturbed numbers: an index may be out of range. If it throws on them, it
// is captured again on the original numbers instead.
#include "trireme/capture/self_check.h"

#include <ATen/ops/isnan.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/exec/replay.h"
#include "trireme/exec/step_generator.h"

namespace trireme::internal {
namespace {

// Returns the error for a difference between two captures of one function.
absl::Status differs(const proto::GraphDef& def, const std::string& how) {
  return make_status(
      ErrorCode::kFailedPrecondition,
      absl::StrCat("function '", def.name(), "' cannot be captured: ", how,
                   ". What changes from step to step must be a tensor that is an argument or a "
                   "variable; numbers that the program computes are constants of the graph"));
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// Returns a description of the first operator that uses a constant; "an output" if none does.
std::string first_user(const proto::GraphDef& def, int constant) {
  for (int i = 0; i < def.nodes_size(); ++i) {
    for (const auto& argument : def.nodes(i).arguments()) {
      const auto is_it = [&](int64_t value) {
        return value >= 0 && def.values(value).source() == proto::Value::CONSTANT &&
               def.values(value).index() == static_cast<uint32_t>(constant);
      };
      bool uses = argument.kind_case() == proto::Argument::kValue && is_it(argument.value());
      for (int64_t value : argument.values().ids()) uses |= is_it(value);
      if (uses) return absl::StrCat("operator '", def.nodes(i).op(), "' (node ", i, ")");
    }
  }
  return "an output";
}

// Captures on perturbed numbers. If the step throws on them, captures on the original numbers,
// which still finds counters and reads of locked memory. Sets `options.perturbation` to the one
// that was used.
Captured capture_again(const StepBody& step, const std::vector<at::Tensor>& inputs,
                       CaptureOptions& options) {
  try {
    return capture(step, inputs, options);
  } catch (const Error&) {
    throw;  // the recorder rejected the step
  } catch (const std::exception&) {
    options.perturbation = 0;
    return capture(step, inputs, options);
  }
}

// Returns the variables that the step writes and whose contents are in the program. While it runs,
// no other thread may use them (function.h), so their memory can be locked.
std::vector<std::shared_ptr<VariableRecord>> written_here(const Captured& captured) {
  std::vector<std::shared_ptr<VariableRecord>> variables;
  for (size_t i = 0; i < captured.variables.size(); ++i) {
    const auto& variable = captured.variables[i];
    if (captured.graph->def.variables(static_cast<int>(i)).written() &&
        variable->backend == nullptr && held_elsewhere(*variable).empty()) {
      variables.push_back(variable);
    }
  }
  return variables;
}

// Compares the graphs node by node. Returns an error that names the first difference.
absl::Status compare_nodes(const proto::GraphDef& a, const proto::GraphDef& b) {
  for (int i = 0; i < std::min(a.nodes_size(), b.nodes_size()); ++i) {
    const proto::Node &x = a.nodes(i), &y = b.nodes(i);
    if (x.SerializeAsString() == y.SerializeAsString()) continue;
    if (x.op() != y.op()) {
      return differs(a, absl::StrCat("two captures differ: node ", i, " is operator '", x.op(),
                                     "' in the first and '", y.op(), "' in the second"));
    }
    for (int j = 0; j < x.arguments_size(); ++j) {
      const std::string before = format_argument(x.arguments(j)),
                        after = format_argument(y.arguments(j));
      if (before != after) {
        return differs(a, absl::StrCat("two captures differ: argument ", j, " of operator '",
                                       x.op(), "' (node ", i, ") is ", before, " in the first and ",
                                       after, " in the second"));
      }
    }
    return differs(a, absl::StrCat("two captures differ: operator '", x.op(), "' (node ", i,
                                   ") is not the same"));
  }
  if (a.nodes_size() != b.nodes_size()) {
    const proto::GraphDef& longer = a.nodes_size() > b.nodes_size() ? a : b;
    return differs(
        a, absl::StrCat("two captures differ: the first has ", a.nodes_size(),
                        " nodes, the second ", b.nodes_size(), ", from operator '",
                        longer.nodes(std::min(a.nodes_size(), b.nodes_size())).op(), "' on"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status check_equal_captures(const Captured& first, const Captured& second) {
  const proto::GraphDef &a = first.graph->def, &b = second.graph->def;
  TRIREME_RETURN_IF_ERROR(compare_nodes(a, b));
  const size_t constants = std::min(first.graph->constants.size(), second.graph->constants.size());
  for (size_t i = 0; i < constants; ++i) {
    if (same_bytes(first.graph->constants[i], second.graph->constants[i])) continue;
    return differs(a, absl::StrCat("two captures differ: a constant of ", first_user(a, i),
                                   " has other contents in the second"));
  }
  if (first.variables != second.variables) {
    return differs(a, "two captures differ: the second uses other variables");
  }
  for (int i = 0; i < std::min(a.values_size(), b.values_size()); ++i) {
    if (a.values(i).SerializeAsString() == b.values(i).SerializeAsString()) continue;
    return differs(a, absl::StrCat("two captures differ: value ", i,
                                   " has another shape, dtype or origin in the second"));
  }
  if (a.SerializeAsString() != b.SerializeAsString()) {
    return differs(a, "two captures differ");
  }
  return absl::OkStatus();
}

bool nearly_equal(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  if (a.numel() == 0 || same_bytes(a, b)) return true;
  if (!a.is_floating_point() && !a.is_complex()) return false;
  const auto dtype = a.is_complex() ? at::kComplexDouble : at::kDouble;
  at::Tensor x = a.to(dtype), y = b.to(dtype);
  const at::Tensor nan = at::isnan(x);
  if (!nan.equal(at::isnan(y))) return false;
  x = at::where(nan, at::zeros_like(x), x);
  y = at::where(nan, at::zeros_like(y), y);
  // Infinity minus infinity is NaN, so equal elements are left out of the difference.
  const at::Tensor difference = at::where(x.eq(y), at::zeros_like(x), x.sub(y)).norm();
  const bool wide = a.scalar_type() == at::kDouble || a.scalar_type() == at::kComplexDouble;
  const bool narrow = a.dtype().itemsize() <= 2;
  const double tolerance = wide ? 1e-12 : narrow ? 1e-2 : 1e-5;
  return difference.item<double>() <= tolerance * x.norm().item<double>();
}

absl::Status check_replay(const Plan& plan, const Captured& captured,
                          const CaptureOptions& options) {
  ReplayOptions for_checks;
  for_checks.poison_uninitialized = true;
  std::vector<at::Tensor> variables;
  for (const at::Tensor& before : captured.variables_before) variables.push_back(before.clone());
  TRIREME_ASSIGN_OR_RETURN(const std::vector<at::Tensor> outputs,
                           replay(plan, captured.inputs, variables,
                                  make_step_generator(options.seed, options.step), for_checks));
  const auto& def = plan.graph->def;
  const auto wrong = [&](const std::string& what) {
    return make_status(
        ErrorCode::kFailedPrecondition,
        absl::StrCat("function '", def.name(), "' cannot be captured: in a replay, ", what,
                     " differs from the captured run. Something in the function reads or writes "
                     "memory without an operator (through data_ptr or an accessor)"));
  };
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!nearly_equal(outputs[i], captured.outputs[i])) return wrong(absl::StrCat("output ", i));
  }
  for (size_t i = 0; i < variables.size(); ++i) {
    if (!nearly_equal(variables[i], captured.variables_after[i])) {
      return wrong(absl::StrCat("variable '", def.variables(i).name(), "'"));
    }
  }
  return absl::OkStatus();
}

CheckedCapture capture_and_check(const StepBody& step, const std::vector<at::Tensor>& inputs,
                                 const CaptureOptions& options, bool check) {
  CheckedCapture result{capture(step, inputs, options), nullptr};
  result.plan = value_or_throw(compile(result.captured.graph));
  if (check) {
    throw_if_error(check_replay(*result.plan, result.captured, options));
    for (int perturbation : {1, 2}) {
      CaptureOptions other = options;
      other.perturbation = perturbation;
      other.repeated = true;
      other.is_known_dropout = nullptr;
      if (perturbation == 2) {
        other.lock_memory = true;
        other.lock_variables = written_here(result.captured);
      }
      const Captured again = capture_again(step, inputs, other);
      throw_if_error(check_equal_captures(result.captured, again));
      throw_if_error(check_replay(*result.plan, again, other));
    }
  }
  // The tensors of the captured run served the checks only.
  result.captured.inputs.clear();
  result.captured.outputs.clear();
  result.captured.variables_before.clear();
  result.captured.variables_after.clear();
  return result;
}

}  // namespace trireme::internal
