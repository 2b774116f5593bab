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
#include "trireme/coordinator/closure_pause.h"
#include "trireme/coordinator/link_context.h"
#include "trireme/coordinator/worker_connection.h"
#include "trireme/coordinator/worker_state.h"
#include "trireme/rpc/connect.h"
#include "trireme/rpc/credentials.h"

namespace trireme::internal {

// Links a coordinator to its workers, which may come and go. Keeps a dispatcher for each of them
// and reports workers that cannot be reached. Thread-safe.
class WorkerLinks final : public PausedWorkers, public std::enable_shared_from_this<WorkerLinks> {
 public:
  WorkerLinks(std::shared_ptr<const LinkContext> context, Credentials credentials)
      : context_(std::move(context)), credentials_(std::move(credentials)) {}

  // Replaces the workers by those of `spec`. Requeues the closures of removed workers. Makes the
  // datasets of new workers with the user's functions; if one throws, nothing has changed.
  void update(const ClusterSpec& spec);
  // Broadcasts to the workers that they should cancel closures below `sequence`, because one of
  // those has failed.
  void cancel_below(uint64_t sequence);
  void cancel_unpushed() override;
  std::vector<std::string> busy() const override;
  // Ends all connections, and blocks until a diagnosis under way has ended.
  void end();

  std::vector<WorkerState> states() const;

 private:
  using Connections = std::vector<std::shared_ptr<WorkerConnection>>;

  std::vector<std::shared_ptr<ClosureDispatcher>> dispatchers() const;
  // Calls check_for_missing() at regular intervals.
  void watch_missing();
  // Starts a diagnosis of the workers that are not up, if it is time for one.
  void check_for_missing(Time now);
  // Diagnoses the `missing` workers. Closes the queue if one of them can never be reached, and logs
  // the causes if `report` is true. Blocks.
  static void report_missing(const LinkContext& context, std::set<int>& suspected,
                             const Connections& missing, bool none_is_up, bool report);

  const std::shared_ptr<const LinkContext> context_;
  const Credentials credentials_;

  Mutex updating_;  // Held by update(), so that only one runs at a time.
  mutable Mutex mutex_;
  // Dispatchers by worker.
  std::map<int, std::shared_ptr<ClosureDispatcher>> dispatchers_ ABSL_GUARDED_BY(mutex_);
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;  // True once watch_missing() has been called.
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<ReportTimes> reports_ ABSL_GUARDED_BY(mutex_);  // Set while workers are missing.
  int checks_ ABSL_GUARDED_BY(mutex_) = 0;  // Number of checks since `reports_` was set.
  // Workers whose last diagnosis was final. Not guarded: only used by the diagnosis under way, or
  // while there is none.
  const std::shared_ptr<std::set<int>> suspected_ = std::make_shared<std::set<int>>();
  std::future<void> reporting_ ABSL_GUARDED_BY(mutex_);  // Waits for the report when destroyed.
};

}  // namespace trireme::internal
