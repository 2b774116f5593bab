#include "trireme/cluster/resolver.h"

#include "trireme/cluster/text.h"

namespace trireme {

Cluster::Cluster(ClusterSpec given_spec, std::optional<TaskId> given_task)
    : spec(std::move(given_spec)), task(std::move(given_task)) {
  if (!task) return;
  if (!internal::is_role(task->job)) {
    internal::refuse("task type '" + task->job + "' is not a valid role; the roles are " +
                     internal::kRoles);
  }
  if (internal::is_single_role(task->job) && task->index != 0) {
    throw Error(ErrorCode::kOutOfRange, "task index " + std::to_string(task->index) +
                                            ": a cluster has one " + task->job +
                                            " at most, with index 0");
  }
  if (task->job == "evaluator") return;  // it need not be in the spec
  if (spec.empty()) {
    internal::refuse("task " + task->to_string() +
                     " is not in a cluster; define one in TF_CONFIG's key 'cluster' or in a file");
  }
  if (task->job == "chief" && !spec.has_job("chief")) {
    task.reset();
  } else {
    spec.address(*task);  // throws if the spec does not have the task
  }
}

std::string Cluster::strategy_name() const {
  if (is_evaluator()) return "default";
  if (!strategy.empty()) return strategy;
  if (spec.has_job("ps")) return "ps";
  return spec.without_evaluator().empty() ? "default" : "multi_worker_mirrored";
}

bool Cluster::is_chief() const {
  if (!task || task->job == "chief") return true;
  return is_worker() && !is_server() && !spec.has_job("chief") && task == spec.tasks("worker")[0];
}

}  // namespace trireme
