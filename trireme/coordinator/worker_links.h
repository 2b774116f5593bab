#pragma once

#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/cluster/cluster_spec.h"
#include "trireme/coordinator/worker_link.h"
#include "trireme/rpc/connect.h"
#include "trireme/rpc/credentials.h"

namespace trireme::internal {

// A coordinator's links to its workers, who may come and go. Thread-safe.
class WorkerLinks : public std::enable_shared_from_this<WorkerLinks> {
 public:
  WorkerLinks(std::shared_ptr<const LinkContext> context, Credentials credentials)
      : context_(std::move(context)), credentials_(std::move(credentials)) {}

  // The workers are those of this spec from now on. Who is not in it gives its closures back.
  // Makes the datasets of new ones with the user's functions, which may throw.
  void update(const ClusterSpec& spec);
  // Closures in flight with smaller sequences are to end, as one of them has failed.
  void cancel_below(uint64_t sequence);
  void end();

  std::vector<WorkerState> states() const;

 private:
  std::vector<std::shared_ptr<WorkerLink>> links() const;
  // Tells again and again, ever more rarely, which workers are not up and why.
  void watch_missing();
  void look_for_missing(Time now);
  static void tell_missing(const LinkContext& context, std::set<int>& suspected,
                           const std::vector<std::shared_ptr<WorkerLink>>& missing, bool none_is_up,
                           bool report);

  const std::shared_ptr<const LinkContext> context_;
  const Credentials credentials_;

  Mutex updating_;  // one at a time
  mutable Mutex mutex_;
  std::map<int, std::shared_ptr<WorkerLink>> links_ ABSL_GUARDED_BY(mutex_);
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<ReportTimes> reports_ ABSL_GUARDED_BY(mutex_);  // while workers are missing
  int looks_ ABSL_GUARDED_BY(mutex_) = 0;                       // since then
  // Workers whose diagnosis was final; of whoever tells.
  const std::shared_ptr<std::set<int>> suspected_ = std::make_shared<std::set<int>>();
  std::future<void> telling_ ABSL_GUARDED_BY(mutex_);  // its end is waited for
};

}  // namespace trireme::internal
