// Replays a plan in this process. A Run binds inputs, variables and constants to the plan's values
// and then executes the nodes in one of four ways:
//   - in captured order, the default;
//   - in captured order and observed: traced, checked for NaN, or with uninitialized memory
//     poisoned. Each operator's results are looked at before the next one runs;
//   - in branches, if the tuner or the caller provides a schedule;
//   - with each replica in a lane of its own, if the plan has replicas.
// The last two need the helper threads. While another run has them, captured order is used.
//
// In captured order, a value leaves the table at its last use. Lanes share the table, so there the
// schedule says which step releases a value (branches.h).
#include "trireme/exec/replay.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isnan.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/exec/operator_trace.h"
#include "trireme/graph/describe_node.h"
#include "trireme/graph/operators.h"
#include "trireme/tensor/buffer_pool.h"

namespace trireme::internal {
namespace {

using Kind = ArgumentPlan::Kind;
using std::chrono::steady_clock;

double seconds_since(Time begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

// One run of a plan. Used once, by one thread; execute() may employ others.
class Run {
 public:
  Run(const Plan& plan, at::Generator generator, const ReplayOptions& options)
      : plan_(plan), options_(options), runner_(plan, std::move(generator)) {
    if (options.trusted) runner_.trust_device_contents();
  }

  absl::Status bind(const std::vector<at::Tensor>& inputs,
                    const std::vector<at::Tensor>& variables) {
    return runner_.bind(inputs, variables);
  }

  absl::Status execute() {
    if (options_.schedule != nullptr) return execute_in_branches(*options_.schedule);
    if (options_.replicas != nullptr) return execute_replicas(*options_.replicas);
    if (observed_ || options_.tuner == nullptr) return execute_in_order();
    const BranchTuner::Attempt attempt = options_.tuner->next();
    if (attempt.time_operators) operator_seconds_.resize(plan_.nodes.size());
    const Time begin = steady_clock::now();
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
      TRIREME_RETURN_IF_ERROR(run_node(i, [&] {
        const NodePlan& node = plan_.nodes[i];
        if (observed_) return execute_observed(i);
        if (operator_seconds_.empty()) return runner_.execute(node, stack_, true, replica_of(i));
        const Time begin = steady_clock::now();
        runner_.execute(node, stack_, true);
        operator_seconds_[i] = seconds_since(begin);
      }));
    }
    return absl::OkStatus();
  }

  int replica_of(size_t node) const {
    const int replica = options_.replicas == nullptr ? -1 : options_.replicas->node_replicas[node];
    return replica < 0 ? -1 : options_.replicas->first_replica + replica;
  }

  // Runs the replicas at the same time, on helpers that share the threads of the process. Operators
  // outside of replicas run on this thread and may use all of them. To change the number of a
  // thread costs about a millisecond, so each keeps its own.
  absl::Status execute_replicas(const ReplicaLanes& replicas) {
    if (observed_ || replicas.schedule.lanes.size() <= 2) return execute_in_order();
    const int lanes = static_cast<int>(replicas.schedule.lanes.size()) - 1;
    return execute_in_branches(replicas.schedule, std::max(1, at::get_num_threads() / lanes));
  }

  absl::Status execute_in_branches(const BranchSchedule& schedule, int helper_threads = 0) {
    std::vector<torch::jit::Stack> stacks(schedule.lanes.size());
    std::vector<std::atomic<uint32_t>> released(schedule.release_count.size());
    absl::Status status;
    const bool ran = run_branches(
        schedule,
        [&](int lane, const BranchStep& step) {
          return run_node(step.node, [&] {
            runner_.execute(plan_.nodes[step.node], stacks[lane], false, replica_of(step.node));
            // The last lane to release a value clears it: by then all others have read it.
            for (uint32_t value : step.frees) runner_.value(value) = c10::IValue();
            for (uint32_t value : step.releases) {
              if (++released[value] < schedule.release_count[value]) continue;
              runner_.value(value) = c10::IValue();
            }
          });
        },
        &status, helper_threads);
    return ran ? status : execute_in_order();
  }

  // Runs one operator unless the run was cancelled. Turns exceptions into an error that names the
  // node.
  template <typename F>
  absl::Status run_node(size_t node, const F& run) const {
    if (options_.stop.stop_requested()) {
      return make_status(ErrorCode::kCancelled,
                         absl::StrCat("cancelled before ", describe_node(plan_, node)),
                         runner_.origin());
    }
    try {
      std::optional<PooledResults> pooled;
      if (options_.pooled) pooled.emplace();
      run();
    } catch (...) {
      return runner_.current_exception_as_status(node);
    }
    return absl::OkStatus();
  }

  void execute_observed(size_t index) {
    const NodePlan& node = plan_.nodes[index];
    // Arguments that the operator writes to are checked like results. They are collected before the
    // call, since their last use removes them from the table.
    std::vector<at::Tensor> written;
    if (options_.check_numerics) {
      for (int i : writable_arguments(node.op)) collect(node.arguments[i], written);
    }
    const Time begin = steady_clock::now();
    runner_.execute(node, stack_, true, replica_of(index));
    if (options_.trace != nullptr) options_.trace->add(node, index, {begin, steady_clock::now()});
    for (const NodePlan::Result& result : node.results) collect(result, written);
    if (options_.poison_uninitialized && makes_uninitialized(node.op)) poison(written);
    if (!options_.check_numerics || makes_uninitialized(node.op)) return;
    for (const at::Tensor& tensor : written) {
      if (tensor.defined() && tensor.is_floating_point() && !tensor.is_sparse() &&
          at::isnan(tensor).any().item<bool>()) {
        throw Error(ErrorCode::kInternal, "it produced a NaN");
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
  std::vector<double> operator_seconds_;  // time of each operator; empty if they are not timed
};

}  // namespace

// Lane 0 has the operators outside of replicas.
ReplicaLanes::ReplicaLanes(const Plan& plan, std::vector<int> replicas)
    : node_replicas(std::move(replicas)) {
  std::vector<int> lanes = node_replicas;
  int last = 0;
  for (int& lane : lanes) last = std::max(last, ++lane);
  schedule = schedule_lanes(plan, lanes, last + 1);
}

absl::StatusOr<std::vector<at::Tensor>> replay(const Plan& plan,
                                               const std::vector<at::Tensor>& inputs,
                                               const std::vector<at::Tensor>& variables,
                                               at::Generator generator,
                                               const ReplayOptions& options) {
  // The graph contains the backward operators, so it runs below autograd. Gradient mode is on
  // nevertheless: without it the LSTM kernel makes no workspace for its backward operator.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::AutoGradMode with_gradients(true);
  // The casts of autocast are in the graph.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const OperatorTrace::Recording recording(options.trace);
  Run run(plan, std::move(generator), options);
  TRIREME_RETURN_IF_ERROR(run.bind(inputs, variables));
  TRIREME_RETURN_IF_ERROR(run.execute());
  for (size_t i = 0; i < variables.size(); ++i) {
    // Kernels below autograd do not bump a tensor's version when they write to it. It is bumped
    // here, so that an eager backward pass over the old contents fails instead of using the new.
    if (plan.variable_written[i]) variables[i].unsafeGetTensorImpl()->bump_version();
  }
  return run.outputs();
}

}  // namespace trireme::internal
