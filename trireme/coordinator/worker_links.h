#pragma once

#include <map>
#include <memory>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/cluster/cluster_spec.h"
#include "trireme/coordinator/worker_link.h"
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

  const std::shared_ptr<const LinkContext> context_;
  const Credentials credentials_;

  Mutex updating_;  // one at a time
  mutable Mutex mutex_;
  std::map<int, std::shared_ptr<WorkerLink>> links_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
