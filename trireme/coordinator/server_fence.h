#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "trireme/base/clock.h"
#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"
#include "trireme/coordinator/closure_fence.h"
#include "trireme/ps/job_membership.h"
#include "trireme/rpc/timer.h"

namespace trireme::internal {

// The parameter servers of a coordinator, as its fence uses them. Thread-safe.
class FencedServers {
 public:
  virtual ~FencedServers() = default;

  struct Server {
    std::string task;
    // Time at which the server rejects all updates of the coordinator's closures, unless it gets a
    // renewal that was sent after raise().
    Time lease_end;
  };
  // Lets every renewal of the coordinator's lease that is sent from now on carry the fence, and
  // returns the servers, always in the same order.
  virtual std::vector<Server> raise(uint64_t below) = 0;
  // Sends the fence to one server. Calls `done` once, at `deadline` at the latest: with OK when the
  // server has confirmed that it applies no update below `below` any more.
  virtual void send(size_t server, uint64_t below, Time deadline,
                    absl::AnyInvocable<void(const absl::Status&)> done) = 0;
};

// Raises the fence of a coordinator's closures at all parameter servers. A server counts as fenced
// when it has confirmed the fence, is lost, or the lease of the coordinator's updates there has run
// out. So a fence takes one call to each server, and at most about as long as a lease.
// Thread-safe. Must be held by a shared_ptr.
class ServerFence final : public ClosureFence, public std::enable_shared_from_this<ServerFence> {
 public:
  // Clocks of two machines differ by less than this after some minutes.
  static constexpr Duration kMargin = std::chrono::milliseconds(100);
  using RunAt = std::function<void(Time, Work)>;

  // Tests replace the timer.
  explicit ServerFence(std::shared_ptr<FencedServers> servers, RunAt timer = run_at)
      : servers_(std::move(servers)), run_at_(std::move(timer)) {}

  void raise(uint64_t below, OnComplete done) override;
  std::vector<std::string> awaited() const override;
  void note_lost(const std::string& task) override;

 private:
  // A fence that is not complete.
  struct Pending {
    OnComplete done;
    // Servers that count as fenced without having confirmed it.
    std::vector<std::string> unconfirmed;
    std::vector<FencedServers::Server> servers;
    std::set<size_t> open;  // Indices of the servers that do not count as fenced yet.
  };
  using PendingPtr = std::shared_ptr<Pending>;

  void on_answer(const PendingPtr& pending, size_t server, const absl::Status& status);
  void on_lease_end(const PendingPtr& pending, size_t server);
  // Counts a server as fenced. Completes the fence if it was the last.
  void complete(const PendingPtr& pending, size_t server, bool confirmed);
  // Removes the fences that are complete from pending_ and returns them, for call_back().
  std::vector<PendingPtr> remove_complete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void call_back(const std::vector<PendingPtr>& completed);

  const std::shared_ptr<FencedServers> servers_;
  const RunAt run_at_;

  mutable Mutex mutex_;
  std::list<PendingPtr> pending_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> lost_ ABSL_GUARDED_BY(mutex_);  // Tasks that are lost.
};

// Makes the fence of the coordinator that is registered as `writer` by a member of a job.
std::shared_ptr<ClosureFence> make_server_fence(std::shared_ptr<JobMembership> membership,
                                                uint64_t writer);

}  // namespace trireme::internal
