#include "trireme/graph/replay.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/isnan.h>
#include <c10/core/GradMode.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trireme/base/status.h"
#include "trireme/graph/branch_tuner.h"
#include "trireme/graph/operators.h"
#include "trireme/graph/random.h"

namespace trireme::internal {
namespace {

using Kind = ArgumentPlan::Kind;
using Clock = OperatorTrace::Clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Run {
 public:
  Run(const Plan& plan, at::Generator generator, const ReplayOptions& options)
      : plan_(plan), options_(options), generator_(std::move(generator)) {
    values_.resize(plan.graph->def.values_size());
  }

  absl::Status bind(const std::vector<at::Tensor>& inputs,
                    const std::vector<at::Tensor>& variables) {
    if (inputs.size() != plan_.input_values.size()) {
      return make_status(ErrorCode::kInvalidArgument,
                         absl::StrCat("the graph takes ", plan_.input_values.size(),
                                      " inputs and got ", inputs.size()));
    }
    if (variables.size() != plan_.variable_values.size()) {
      return make_status(ErrorCode::kInvalidArgument,
                         absl::StrCat("the graph uses ", plan_.variable_values.size(),
                                      " variables and got ", variables.size()));
    }
    const auto place = [this](const std::vector<int64_t>& values, size_t i, at::Tensor tensor) {
      if (values[i] >= 0) values_[values[i]] = std::move(tensor);
    };
    for (size_t i = 0; i < inputs.size(); ++i) place(plan_.input_values, i, inputs[i]);
    for (size_t i = 0; i < variables.size(); ++i) place(plan_.variable_values, i, variables[i]);
    const auto& constants = plan_.graph->constants;
    for (size_t i = 0; i < constants.size(); ++i) {
      place(plan_.constant_values, i,
            plan_.constant_written[i] ? constants[i].clone() : constants[i]);
    }
    return absl::OkStatus();
  }

  absl::Status execute() {
    if (options_.schedule != nullptr) return execute_in_branches(*options_.schedule);
    if (observed_) return execute_in_order();
    const BranchTuner::Attempt attempt = plan_.branches->next();
    if (attempt.time_operators) operator_seconds_.resize(plan_.nodes.size());
    const auto begin = Clock::now();
    const absl::Status status =
        attempt.schedule ? execute_in_branches(*attempt.schedule) : execute_in_order();
    if (attempt.measured && status.ok()) {
      plan_.branches->report(plan_, attempt, seconds_since(begin), operator_seconds_);
    }
    return status;
  }

  std::vector<at::Tensor> outputs() {
    std::vector<at::Tensor> outputs;
    const auto& ids = plan_.graph->def.outputs();
    outputs.reserve(ids.size());
    for (int i = 0; i < ids.size(); ++i) {
      at::Tensor output = ids[i] < 0 ? at::Tensor() : values_[ids[i]].toTensor();
      outputs.push_back(plan_.output_copied[i] ? output.clone() : output);
    }
    return outputs;
  }

 private:
  Origin origin() const { return {"", absl::StrCat("graph '", plan_.graph->def.name(), "'")}; }

  absl::Status execute_in_order() {
    for (size_t i = 0; i < plan_.nodes.size(); ++i) {
      TRIREME_RETURN_IF_ERROR(guarded(i, [&] {
        const NodePlan& node = plan_.nodes[i];
        if (observed_) return execute_observed(i);
        if (operator_seconds_.empty()) return execute_node(node, stack_, true);
        const auto begin = Clock::now();
        execute_node(node, stack_, true);
        operator_seconds_[i] = seconds_since(begin);
      }));
    }
    return absl::OkStatus();
  }

  absl::Status execute_in_branches(const BranchSchedule& schedule) {
    std::vector<torch::jit::Stack> stacks(schedule.lanes.size());
    std::vector<std::atomic<uint32_t>> released(schedule.released_by.size());
    absl::Status status;
    const bool ran = run_branches(
        schedule,
        [&](int lane, const BranchStep& step) {
          return guarded(step.node, [&] {
            execute_node(plan_.nodes[step.node], stacks[lane], false);
            for (uint32_t value : step.frees) values_[value] = c10::IValue();
            for (uint32_t value : step.releases) {
              if (++released[value] == schedule.released_by[value]) values_[value] = c10::IValue();
            }
          });
        },
        &status);
    return ran ? status : execute_in_order();
  }

  // Runs one operator, if the run was not cancelled before it.
  template <typename F>
  absl::Status guarded(size_t node, const F& run) const {
    if (options_.stop.stop_requested()) {
      return make_status(ErrorCode::kCancelled,
                         absl::StrCat("cancelled before ", describe_node(plan_, node)), origin());
    }
    try {
      run();
    } catch (const Error& error) {
      return failed(node, error.message(), error.code());
    } catch (const c10::Error& error) {
      return failed(node, error.what_without_backtrace());
    } catch (const std::exception& error) {
      return failed(node, error.what());
    }
    return absl::OkStatus();
  }

  absl::Status failed(size_t node, const std::string& why,
                      ErrorCode code = ErrorCode::kInternal) const {
    return make_status(code, absl::StrCat(describe_node(plan_, node), " failed: ", why), origin());
  }

  // In captured order, the last use of a value takes it out of the table.
  void execute_node(const NodePlan& node, torch::jit::Stack& stack, bool in_order) {
    for (const ArgumentPlan& argument : node.arguments) push(argument, stack, in_order);
    for (int i : node.aliased) stack[i] = at::alias(stack[i].toTensor());
    if (node.guard != nullptr) node.guard(stack);
    if (node.resizes) {
      call_resizing(node, stack);
    } else {
      call(node, stack);
    }
    if (node.makes_uninitialized) clear(stack);
    take_results(node, stack);
    stack.clear();
    if (!in_order) return;
    for (uint32_t value : node.free_after) values_[value] = c10::IValue();
  }

  void push(const ArgumentPlan& argument, torch::jit::Stack& stack, bool in_order) {
    switch (argument.kind) {
      case Kind::kConstant:
        stack.push_back(argument.constant);
        return;
      case Kind::kValue:
        if (argument.last_use && in_order) {
          stack.push_back(std::move(values_[argument.value]));
        } else {
          stack.push_back(values_[argument.value]);
        }
        if (stack.back().isTensor() && is_sparse(stack.back().toTensor())) {
          guard_sparse(stack.back().toTensor());
        }
        return;
      case Kind::kValues: {
        c10::List<at::Tensor> list;
        list.reserve(argument.values.size());
        for (int64_t value : argument.values) {
          list.push_back(values_[value].toTensor());
          if (is_sparse(values_[value].toTensor())) guard_sparse(values_[value].toTensor());
        }
        stack.push_back(std::move(list));
        return;
      }
      case Kind::kOptionalValues: {
        c10::List<std::optional<at::Tensor>> list;
        list.reserve(argument.values.size());
        for (int64_t value : argument.values) {
          list.push_back(value < 0 ? std::nullopt
                                   : std::optional<at::Tensor>(values_[value].toTensor()));
        }
        stack.push_back(std::move(list));
        return;
      }
      case Kind::kGenerator:
        stack.push_back(generator_);
        return;
    }
  }

  static bool is_sparse(const at::Tensor& tensor) {
    return tensor.defined() && tensor.layout() != at::kStrided;
  }

  void call(const NodePlan& node, torch::jit::Stack& stack) {
    if (node.random && !node.has_generator) {
      BorrowDefaultGenerator borrow(generator_);
      node.op.callBoxed(stack);
    } else {
      node.op.callBoxed(stack);
    }
  }

  // What memory held before is nobody's business: neither what a tensor grew by, nor what `empty`
  // gives.
  void call_resizing(const NodePlan& node, torch::jit::Stack& stack) {
    const at::Tensor resized = stack[0].toTensor();
    const size_t before = resized.storage().nbytes();
    call(node, stack);
    const size_t after = resized.storage().nbytes();
    if (after <= before) return;
    if (!resized.device().is_cpu()) {
      throw Error(ErrorCode::kUnimplemented, "a tensor may grow in a CPU's memory only");
    }
    std::memset(static_cast<char*>(resized.storage().mutable_data()) + before, 0, after - before);
  }

  static void clear(torch::jit::Stack& results) {
    for (c10::IValue& result : results) {
      if (result.isTensor()) result.toTensor().zero_();
    }
  }

  void take_results(const NodePlan& node, torch::jit::Stack& stack) {
    for (size_t i = 0; i < node.results.size(); ++i) {
      const NodePlan::Result& result = node.results[i];
      if (result.value >= 0) {
        values_[result.value] = std::move(stack[i]);
      } else if (!result.list.empty()) {
        take_list(result, stack[i].toTensorVector());
      }
    }
  }

  void take_list(const NodePlan::Result& result, std::vector<at::Tensor> tensors) {
    if (tensors.size() != result.list.size()) {
      throw Error(ErrorCode::kInternal, absl::StrCat("gave ", tensors.size(), " tensors and ",
                                                     result.list.size(), " when capturing"));
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (result.list[i] >= 0) values_[result.list[i]] = std::move(tensors[i]);
    }
  }

  void execute_observed(size_t index) {
    const NodePlan& node = plan_.nodes[index];
    // Written arguments may be dropped by their last use; they are looked at as well.
    std::vector<at::Tensor> written;
    if (options_.check_numerics) {
      for (int i : writable_arguments(node.op)) collect(node.arguments[i], written);
    }
    const auto begin = OperatorTrace::Clock::now();
    execute_node(node, stack_, true);
    if (options_.trace != nullptr) {
      options_.trace->add(node, index, begin, OperatorTrace::Clock::now());
    }
    for (const NodePlan::Result& result : node.results) collect(result, written);
    if (options_.poison_uninitialized && makes_uninitialized(node.op)) poison(written);
    if (!options_.check_numerics || makes_uninitialized(node.op)) return;
    for (const at::Tensor& tensor : written) {
      if (tensor.defined() && tensor.is_floating_point() && !tensor.is_sparse() &&
          at::isnan(tensor).any().item<bool>()) {
        throw Error(ErrorCode::kInternal, "it made a NaN");
      }
    }
  }

  void collect(const ArgumentPlan& argument, std::vector<at::Tensor>& tensors) {
    if (argument.kind == Kind::kValue) tensors.push_back(values_[argument.value].toTensor());
    for (int64_t value : argument.values) {
      if (value >= 0) tensors.push_back(values_[value].toTensor());
    }
  }

  void collect(const NodePlan::Result& result, std::vector<at::Tensor>& tensors) {
    if (result.value >= 0 && values_[result.value].isTensor()) {
      tensors.push_back(values_[result.value].toTensor());
    }
    for (int64_t value : result.list) {
      if (value >= 0) tensors.push_back(values_[value].toTensor());
    }
  }

  static void poison(std::vector<at::Tensor>& tensors) {
    for (at::Tensor& tensor : tensors) {
      if (tensor.is_floating_point() || tensor.is_complex()) {
        tensor.fill_(std::numeric_limits<double>::quiet_NaN());
      } else if (tensor.scalar_type() != at::kBool) {
        tensor.fill_(101);
      }
    }
  }

  const Plan& plan_;
  const ReplayOptions& options_;
  const bool observed_ =
      options_.trace != nullptr || options_.check_numerics || options_.poison_uninitialized;
  at::Generator generator_;
  std::vector<c10::IValue> values_;
  torch::jit::Stack stack_;
  std::vector<double> operator_seconds_;  // filled when it has a place for each
};

}  // namespace

absl::StatusOr<std::vector<at::Tensor>> replay(const Plan& plan,
                                               const std::vector<at::Tensor>& inputs,
                                               const std::vector<at::Tensor>& variables,
                                               at::Generator generator,
                                               const ReplayOptions& options) {
  // Below autograd, but with the gradient mode on: without it the LSTM kernel makes no workspace
  // for the backward operators that follow.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::AutoGradMode with_gradients(true);
  Run run(plan, std::move(generator), options);
  TRIREME_RETURN_IF_ERROR(run.bind(inputs, variables));
  TRIREME_RETURN_IF_ERROR(run.execute());
  for (size_t i = 0; i < variables.size(); ++i) {
    // Kernels below autograd do not tell it of their writes; a backward pass over what it saved
    // before must fail, not use the new contents.
    if (plan.variable_written[i]) variables[i].unsafeGetTensorImpl()->bump_version();
  }
  return run.outputs();
}

std::string describe_node(const Plan& plan, size_t node) {
  const proto::GraphDef& def = plan.graph->def;
  const proto::Node& described = def.nodes(static_cast<int>(node));
  std::string text = absl::StrCat("operator '", described.op(), "' (node ", node);
  if (described.module() > 0) {
    absl::StrAppend(&text, ", module '", def.scopes(described.module() - 1), "'");
  }
  if (described.scope() > 0) {
    absl::StrAppend(&text, ", scope '", def.scopes(described.scope() - 1), "'");
  }
  return text + ")";
}

void OperatorTrace::add(const NodePlan& node, size_t index, Clock::time_point begin,
                        Clock::time_point end) {
  events_.push_back({operator_name(node.op), index, begin, end});
}

std::string OperatorTrace::chrome_json() const {
  std::string json = "{\"traceEvents\":[";
  const auto microseconds = [](Clock::duration duration) {
    return std::chrono::duration<double, std::micro>(duration).count();
  };
  for (size_t i = 0; i < events_.size(); ++i) {
    const Event& event = events_[i];
    absl::StrAppendFormat(
        &json,
        "%s{\"name\":\"%s\",\"ph\":\"X\",\"pid\":1,\"tid\":1,\"ts\":%.3f,\"dur\":%.3f,"
        "\"args\":{\"node\":%d}}",
        i == 0 ? "" : ",", event.name, microseconds(event.begin - events_[0].begin),
        microseconds(event.end - event.begin), event.node);
  }
  return json + "]}";
}

}  // namespace trireme::internal
