#include "trireme/exec/replay.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isnan.h>
#include <c10/core/GradMode.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trireme/base/status.h"
#include "trireme/graph/describe_node.h"
#include "trireme/graph/operators.h"

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
      : plan_(plan), options_(options), runner_(plan, std::move(generator)) {}

  absl::Status bind(const std::vector<at::Tensor>& inputs,
                    const std::vector<at::Tensor>& variables) {
    return runner_.bind(inputs, variables);
  }

  absl::Status execute() {
    if (options_.schedule != nullptr) return execute_in_branches(*options_.schedule);
    if (observed_ || options_.tuner == nullptr) return execute_in_order();
    const BranchTuner::Attempt attempt = options_.tuner->next();
    if (attempt.time_operators) operator_seconds_.resize(plan_.nodes.size());
    const auto begin = Clock::now();
    const absl::Status status =
        attempt.schedule ? execute_in_branches(*attempt.schedule) : execute_in_order();
    if (attempt.measured && status.ok()) {
      options_.tuner->report(plan_, attempt, seconds_since(begin), operator_seconds_);
    }
    return status;
  }

  std::vector<at::Tensor> outputs() { return runner_.outputs(); }

 private:
  absl::Status execute_in_order() {
    for (size_t i = 0; i < plan_.nodes.size(); ++i) {
      TRIREME_RETURN_IF_ERROR(guarded(i, [&] {
        const NodePlan& node = plan_.nodes[i];
        if (observed_) return execute_observed(i);
        if (operator_seconds_.empty()) return runner_.execute(node, stack_, true);
        const auto begin = Clock::now();
        runner_.execute(node, stack_, true);
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
            runner_.execute(plan_.nodes[step.node], stacks[lane], false);
            for (uint32_t value : step.frees) runner_.value(value) = c10::IValue();
            for (uint32_t value : step.releases) {
              if (++released[value] < schedule.released_by[value]) continue;
              runner_.value(value) = c10::IValue();
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
                         absl::StrCat("cancelled before ", describe_node(plan_, node)),
                         runner_.origin());
    }
    try {
      run();
    } catch (...) {
      return runner_.failed(node);
    }
    return absl::OkStatus();
  }

  void execute_observed(size_t index) {
    const NodePlan& node = plan_.nodes[index];
    // Written arguments may be dropped by their last use; they are looked at as well.
    std::vector<at::Tensor> written;
    if (options_.check_numerics) {
      for (int i : writable_arguments(node.op)) collect(node.arguments[i], written);
    }
    const auto begin = OperatorTrace::Clock::now();
    runner_.execute(node, stack_, true);
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
    if (argument.kind == Kind::kValue) tensors.push_back(runner_.value(argument.value).toTensor());
    for (int64_t value : argument.values) {
      if (value >= 0) tensors.push_back(runner_.value(value).toTensor());
    }
  }

  void collect(const NodePlan::Result& result, std::vector<at::Tensor>& tensors) {
    if (result.value >= 0 && runner_.value(result.value).isTensor()) {
      tensors.push_back(runner_.value(result.value).toTensor());
    }
    for (int64_t value : result.list) {
      if (value >= 0) tensors.push_back(runner_.value(value).toTensor());
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
  NodeRunner runner_;
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
