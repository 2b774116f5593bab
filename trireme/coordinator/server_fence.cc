#include "trireme/coordinator/server_fence.h"

#include <utility>

#include "trireme/base/logging.h"
#include "trireme/base/status.h"

// Why a fence holds when a server does not answer. The server may be frozen, or cut off from the
// coordinator, while workers that are not connected any more can reach it. It rejects their updates
// once the lease of the coordinator's writer has run out there. Requests for a lease name its end
// on the server's own clock (ps/lease_clock.h), so one that is executed late does not revive it.
// All requests that are sent after the fence was raised carry the fence: a server that executes one
// of these raises the writer's watermark before it extends the lease. So the fence only has to wait
// for the end of leases that were requested before.
//
// The end of a lease says less than an answer: the server may have been frozen while it applied an
// update, after it had checked the lease, and completes the update when it is thawed. Only its
// answer says that no update is being applied. So raise() tells its caller which of them it was.
namespace trireme::internal {
namespace {

// Returns true if the server's answer says that it rejects the updates anyway: it was restarted, or
// knows neither the writer nor its job any more, or a newer program has taken over the job.
bool rejects_updates(const absl::Status& answer) {
  switch (error_code(answer)) {
    case ErrorCode::kIncarnationChanged:
    case ErrorCode::kAborted:
    case ErrorCode::kNotFound:
      return true;
    default:
      return false;
  }
}

class MemberServers final : public FencedServers {
 public:
  MemberServers(std::shared_ptr<JobMembership> membership, uint64_t writer)
      : membership_(std::move(membership)), writer_(writer) {}

  std::vector<Server> raise(uint64_t below) override {
    std::vector<Server> servers;
    for (const Time lease_end : membership_->raise_fence(writer_, below)) {
      servers.push_back({membership_->task(static_cast<int>(servers.size())), lease_end});
    }
    return servers;
  }

  void send(size_t server, uint64_t below, Time deadline,
            absl::AnyInvocable<void(const absl::Status&)> done) override {
    membership_->fence(static_cast<int>(server), writer_, below, deadline, std::move(done));
  }

 private:
  const std::shared_ptr<JobMembership> membership_;
  const uint64_t writer_;
};

}  // namespace

std::shared_ptr<ClosureFence> make_server_fence(std::shared_ptr<JobMembership> membership,
                                                uint64_t writer) {
  return std::make_shared<ServerFence>(
      std::make_shared<MemberServers>(std::move(membership), writer));
}

void ServerFence::raise(uint64_t below, OnComplete done) {
  const auto pending = std::make_shared<Pending>();
  pending->done = std::move(done);
  pending->servers = servers_->raise(below);
  std::vector<size_t> sent;
  std::vector<PendingPtr> completed;
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < pending->servers.size(); ++i) {
      if (!lost_.contains(pending->servers[i].task)) sent.push_back(i);
    }
    pending->open = {sent.begin(), sent.end()};
    pending_.push_back(pending);
    completed = remove_complete();
  }
  call_back(completed);
  for (const size_t i : sent) {
    servers_->send(i, below, pending->servers[i].lease_end + kMargin,
                   [self = shared_from_this(), pending, i](const absl::Status& status) {
                     self->on_answer(pending, i, status);
                   });
  }
}

void ServerFence::on_answer(const PendingPtr& pending, size_t server, const absl::Status& status) {
  // With another incarnation, the variables that an update could change are gone.
  const bool confirmed = status.ok() || error_code(status) == ErrorCode::kIncarnationChanged;
  if (confirmed || rejects_updates(status)) return complete(pending, server, confirmed);
  run_at_(pending->servers[server].lease_end + kMargin,
          [self = shared_from_this(), pending, server] { self->on_lease_end(pending, server); });
}

void ServerFence::on_lease_end(const PendingPtr& pending, size_t server) {
  {
    MutexLock lock(mutex_);
    if (!pending->open.contains(server)) return;
  }
  log_warning(
      pending->servers[server].task,
      " did not confirm that it rejects late updates; it does so because the lease of this "
      "program has run out there. If it was stopped while it applied an update, it may still "
      "complete that one");
  complete(pending, server, false);
}

void ServerFence::complete(const PendingPtr& pending, size_t server, bool confirmed) {
  std::vector<PendingPtr> completed;
  {
    MutexLock lock(mutex_);
    if (pending->open.erase(server) > 0 && !confirmed) {
      pending->unconfirmed.push_back(pending->servers[server].task);
    }
    completed = remove_complete();
  }
  call_back(completed);
}

std::vector<std::string> ServerFence::awaited() const {
  std::set<std::string> tasks;
  MutexLock lock(mutex_);
  for (const PendingPtr& pending : pending_) {
    for (const size_t server : pending->open) tasks.insert(pending->servers[server].task);
  }
  return {tasks.begin(), tasks.end()};
}

void ServerFence::note_lost(const std::string& task) {
  std::vector<PendingPtr> completed;
  {
    MutexLock lock(mutex_);
    lost_.insert(task);
    for (const PendingPtr& pending : pending_) {
      std::erase_if(pending->open, [&](size_t i) { return pending->servers[i].task == task; });
    }
    completed = remove_complete();
  }
  call_back(completed);
}

std::vector<ServerFence::PendingPtr> ServerFence::remove_complete() {
  std::vector<PendingPtr> completed;
  for (auto each = pending_.begin(); each != pending_.end();) {
    if (!(*each)->open.empty()) {
      ++each;
      continue;
    }
    completed.push_back(std::move(*each));
    each = pending_.erase(each);
  }
  return completed;
}

void ServerFence::call_back(const std::vector<PendingPtr>& completed) {
  for (const PendingPtr& each : completed) each->done(each->unconfirmed);
}

}  // namespace trireme::internal
