#include "trireme/cluster/strategy_tasks.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/logging.h"
#include "trireme/cluster/text.h"

namespace trireme::internal {
namespace {

constexpr char kPs[] = "ps";
constexpr char kMultiWorker[] = "multi_worker_mirrored";
constexpr std::array<std::string_view, 5> kAllStrategies = {kPs, kMultiWorker, "mirrored",
                                                            "central_storage", "default"};

// Returns the number of tasks that train together if there are no parameter servers.
int training_tasks(const ClusterSpec& spec) {
  return spec.num_tasks("worker") + spec.num_tasks("chief");
}

// Returns true if this process was started as one of several that train together. The chief of a
// cluster with parameter servers is the only one of its kind.
bool is_one_of_several(const Cluster& cluster) {
  if (cluster.spec.has_job("ps")) return cluster.is_worker();
  return cluster.task && training_tasks(cluster.spec) > 1;
}

[[noreturn]] void refuse_without_duty(const Cluster& cluster, const std::string& strategy) {
  if (cluster.is_ps()) {
    refuse(absl::StrCat("strategy '", strategy, "' has no use for this process, ",
                        cluster.task->to_string(),
                        ": it keeps no variables on parameter servers; use strategy 'ps', or start "
                        "no ps tasks and leave job 'ps' out of the cluster spec"));
  }
  if (strategy == kMultiWorker) {
    refuse(absl::StrCat(
        "strategy '", kMultiWorker,
        "' trains on the workers of a cluster, but this process is none of its tasks; start the "
        "program once for each worker, with TF_CONFIG's \"task\" or with --task_type worker and "
        "--task_index, or on one machine with trireme launch --mirrored"));
  }
  refuse(absl::StrCat("strategy '", strategy, "' trains in one process, but this process is ",
                      cluster.task->to_string(), ", one of ",
                      std::max(2, training_tasks(cluster.spec)),
                      " that were started to train together, and each would train alone; use "
                      "strategy '",
                      cluster.spec.has_job("ps") ? kPs : kMultiWorker,
                      "', or start the program once, without a cluster"));
}

}  // namespace

Duty duty_of(const Cluster& cluster, const std::string& strategy) {
  if (cluster.is_evaluator()) return Duty::kEvaluate;
  if (strategy == kPs) return cluster.is_worker() || cluster.is_ps() ? Duty::kServe : Duty::kTrain;
  if (cluster.is_ps()) return Duty::kNone;
  if (strategy == kMultiWorker) {
    return cluster.task || cluster.is_local() ? Duty::kTrain : Duty::kNone;
  }
  return is_one_of_several(cluster) ? Duty::kNone : Duty::kTrain;
}

void check_has_duty(const Cluster& cluster, const std::string& strategy) {
  if (std::ranges::find(kAllStrategies, strategy) == kAllStrategies.end()) {
    refuse(absl::StrCat("'", strategy, "' is not the name of a strategy", kStrategyNames));
  }
  if (cluster.is_evaluator()) return;
  if (duty_of(cluster, strategy) == Duty::kNone) refuse_without_duty(cluster, strategy);
  if (strategy == kPs && !cluster.spec.empty() && !cluster.spec.has_job("ps")) {
    refuse("the cluster has no ps tasks to keep variables on; add a ps job to it");
  }
}

void check_trains(const Cluster& cluster, const std::string& strategy) {
  check_has_duty(cluster, strategy);
  switch (duty_of(cluster, strategy)) {
    case Duty::kServe:
      if (!cluster.strategy.empty() && cluster.strategy != strategy) {
        refuse(absl::StrCat("this program trains with strategy '", strategy,
                            "', but was asked for '", cluster.strategy,
                            "'; leave --strategy out, or start a program that takes it"));
      }
      refuse(absl::StrCat("strategy '", strategy,
                          "' is made by the chief's program, but this process is ",
                          cluster.task->to_string(),
                          ", which serves it; first write: if (me.is_server()) return "
                          "tr::Server(me).join();"));
    case Duty::kEvaluate:
      refuse(absl::StrCat("strategy '", strategy, "' is for processes that train, but this one is ",
                          cluster.task->to_string(),
                          ", which evaluates the checkpoints of the others; call "
                          "evaluate_checkpoints() with a model that has no strategy"));
    default:
      return;
  }
}

void warn_of_unused_jobs(const Cluster& cluster, const std::string& strategy) {
  if (strategy == kPs || cluster.is_evaluator()) return;
  std::vector<std::string> unused;
  for (const std::string& job : cluster.spec.jobs()) {
    const bool trains = job != "ps" && strategy == kMultiWorker;
    const bool own = cluster.task && cluster.task->job == job;
    if (trains || own || job == "evaluator") continue;
    unused.push_back(
        absl::StrCat("job '", job, "' (", count(cluster.spec.num_tasks(job), "task"), ")"));
  }
  if (unused.empty()) return;
  log_warning("strategy '", strategy, "' has no use for ", absl::StrJoin(unused, " and "),
              " of the cluster spec; ",
              strategy == kMultiWorker ? "every worker has all variables"
                                       : "it trains in this process alone");
}

}  // namespace trireme::internal
