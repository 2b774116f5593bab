#include "trireme/testing/test_cluster.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/runtime/cluster_status.h"

namespace trireme {
namespace {

// Returns the part of the spec that has only this task.
ClusterSpec only(const ClusterSpec& spec, const TaskId& task) {
  return ClusterSpec{{task.job, {{task.index, spec.address(task)}}}};
}

}  // namespace

ClusterSpec TestCluster::spec_with_workers(const std::vector<int>& workers) const {
  std::map<int, std::string> addresses, ps;
  for (int worker : workers) addresses[worker] = spec().address({"worker", worker});
  for (int i = 0; i < spec().num_tasks("ps"); ++i) ps[i] = spec().address({"ps", i});
  return ClusterSpec{{"worker", addresses}, {"ps", ps}};
}

std::string TestCluster::target(const TaskId& task) const {
  return absl::StrCat("grpc://", spec().address(task));
}

void TestCluster::restart(const TaskId& task) {
  if (is_running(task)) kill(task);
  start(task);
  wait_until_up(task);
}

void TestCluster::wait_until_up(Time deadline) {
  std::string missing;
  for (const auto& [task, answer] : describe_cluster(
           spec(), {.deadline = deadline, .wait = true, .credentials = credentials()})) {
    if (answer.ok()) continue;
    absl::StrAppend(&missing, "\n", trireme::describe(answer.status()), "; it wrote:");
    for (const std::string& line : logs(task)) absl::StrAppend(&missing, "\n    ", line);
  }
  if (!missing.empty()) {
    throw Error(ErrorCode::kDeadlineExceeded, absl::StrCat("the cluster is not up:", missing));
  }
}

void TestCluster::wait_until_up(const TaskId& task, Time deadline) {
  const ClusterStatus status = describe_cluster(
      only(spec(), task), {.deadline = deadline, .wait = true, .credentials = credentials()});
  value_or_throw(status.begin()->second);
}

void TestCluster::wait_until_no_steps(Time deadline) {
  for (const TaskId& task : spec().all_tasks()) {
    for (;;) {
      const auto counters = describe(task).counters;
      const uint64_t steps = counters.at("steps_active");
      const uint64_t values = counters.at("step_values_waiting");
      if (steps + values == 0) break;
      if (Clock::real().now() < deadline) continue;
      throw Error(
          ErrorCode::kDeadlineExceeded,
          absl::StrCat("the task still holds ", steps, " steps and ", values, " values of steps"),
          {task.to_string(), ""});
    }
  }
}

TaskDescription TestCluster::describe(const TaskId& task) {
  const ClusterStatus status = describe_cluster(only(spec(), task), {.credentials = credentials()});
  return value_or_throw(status.begin()->second);
}

}  // namespace trireme
