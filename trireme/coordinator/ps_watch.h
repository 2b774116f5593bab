#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "trireme/base/rate_limit.h"
#include "trireme/cluster/cluster_spec.h"
#include "trireme/coordinator/closure_queue.h"
#include "trireme/rpc/channel.h"
#include "trireme/runtime/health_checker.h"

namespace trireme::internal {

// Finds out whether a parameter server that a worker could not use is lost. The worker may be the
// one that is cut off, so the coordinator checks the server itself. If the server is lost, closes
// the queue with DATA_LOSS. Thread-safe. Its checks under way may outlive it.
class PsWatch {
 public:
  // `incarnations` has one for each ps task, in order. A task with another incarnation was started
  // again and has lost its variables.
  PsWatch(const ClusterSpec& spec, const Credentials& credentials,
          std::vector<uint64_t> incarnations, std::shared_ptr<HealthChecker> health_checker,
          std::shared_ptr<ClosureQueue> queue);

  // Returns true if the error says that a ps task could not be reached, has restarted, or has
  // rejected a push.
  bool is_server_failure(const absl::Status& error) const { return server_of(error) >= 0; }
  // Returns true if the error says that a ps task has rejected a push, because the coordinator's
  // lease there has run out. This is not the worker's fault: the lease is renewed as soon as the
  // server answers the coordinator.
  bool is_rejection(const absl::Status& error) const;

  // Checks the health of the ps task that `error` names; the error must be a server failure. Calls
  // `done` once. If the task is lost, the queue is closed before that.
  using Done = absl::AnyInvocable<void(bool lost)>;
  void check_server(const absl::Status& error, Done done);
  // Requeues closures that failed on a worker with this error, after a check of the server. They go
  // to other workers if the worker could not reach the server. If the server is lost, or the queue
  // cancels closures, they are cancelled.
  void check_and_requeue(const absl::Status& error, int worker, std::vector<ClosurePtr> closures);

 private:
  // Returns the index of the ps task that `error` names, or -1 if it is not a server failure.
  int server_of(const absl::Status& error) const;

  const std::vector<uint64_t> incarnations_;
  const std::shared_ptr<HealthChecker> health_checker_;
  const std::shared_ptr<ClosureQueue> queue_;
  std::vector<std::shared_ptr<Channel>> channels_;
  RateLimit rejections_{1, std::chrono::seconds(1)};  // Limits the log lines for rejected updates.
};

// Returns true if the error of a call says that the task cannot be reached or has restarted.
bool indicates_lost_task(const absl::Status& error);

// Returns the error for a parameter server that is lost, as the answer to a health check says.
absl::Status lost_server(const std::string& task, const absl::Status& answer);

}  // namespace trireme::internal
