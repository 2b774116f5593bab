#include "trireme/testing/in_process_test_cluster.h"

#include "absl/strings/str_cat.h"

namespace trireme {
namespace {

[[noreturn]] void cannot(const std::string& what, const TaskId& task) {
  throw Error(ErrorCode::kUnimplemented,
              absl::StrCat("cannot ", what,
                           " a task that runs in the test's own process; check "
                           "can_freeze() first, or use a ProcessCluster"),
              {.task = task.to_string()});
}

}  // namespace

InProcessTestCluster::InProcessTestCluster(const TestClusterOptions& options,
                                           std::optional<DeviceList> devices)
    : cluster_({.workers = options.workers, .ps = options.ps, .devices = devices}) {
  if (options.start) return;
  for (const TaskId& task : cluster_.spec().all_tasks()) cluster_.stop(task);
}

void InProcessTestCluster::freeze(const TaskId& task) {
  cannot("freeze", task);
}

void InProcessTestCluster::thaw(const TaskId& task) {
  cannot("thaw", task);
}

}  // namespace trireme
