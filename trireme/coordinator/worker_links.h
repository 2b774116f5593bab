#pragma once

#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/cluster/cluster_spec.h"
#include "trireme/coordinator/closure_dispatcher.h"
#include "trireme/coordinator/link_context.h"
#include "trireme/coordinator/worker_connection.h"
#include "trireme/coordinator/worker_state.h"
#include "trireme/rpc/connect.h"
#include "trireme/rpc/credentials.h"

namespace trireme::internal {

// Links a coordinator to its workers, which may come and go: keeps a dispatcher for each of them,
// and reports workers that cannot be reached. Thread-safe.
class WorkerLinks : public std::enable_shared_from_this<WorkerLinks> {
 public:
  WorkerLinks(std::shared_ptr<const LinkContext> context, Credentials credentials)
      : context_(std::move(context)), credentials_(std::move(credentials)) {}

  // Makes the workers of the spec those of the coordinator. Closures of a worker that is not in it
  // are requeued. Makes the datasets of new workers with the user's functions, which may throw.
  void update(const ClusterSpec& spec);
  // Tells the workers to end closures with smaller sequences, since one of them has failed.
  void cancel_below(uint64_t sequence);
  void end();

  std::vector<WorkerState> states() const;

 private:
  using Connections = std::vector<std::shared_ptr<WorkerConnection>>;

  std::vector<std::shared_ptr<ClosureDispatcher>> dispatchers() const;
  // Reports again and again, ever more rarely, which workers are not up and why.
  void watch_missing();
  void look_for_missing(Time now);
  static void report_missing(const LinkContext& context, std::set<int>& suspected,
                             const Connections& missing, bool none_is_up, bool report);

  const std::shared_ptr<const LinkContext> context_;
  const Credentials credentials_;

  Mutex updating_;  // Held by update(), so that one runs at a time.
  mutable Mutex mutex_;
  // Dispatchers by worker.
  std::map<int, std::shared_ptr<ClosureDispatcher>> dispatchers_ ABSL_GUARDED_BY(mutex_);
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<ReportTimes> reports_ ABSL_GUARDED_BY(mutex_);  // Set while workers are missing.
  int looks_ ABSL_GUARDED_BY(mutex_) = 0;                       // Looks since `reports_` was set.
  // Workers whose diagnosis was final. Used by one report at a time, and between reports.
  const std::shared_ptr<std::set<int>> suspected_ = std::make_shared<std::set<int>>();
  std::future<void> reporting_ ABSL_GUARDED_BY(mutex_);  // Its destructor waits for the report.
};

}  // namespace trireme::internal
