#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/lru_map.h"
#include "trireme/base/mutex.h"
#include "trireme/runtime/master_graph.h"

namespace trireme::internal {

// Keeps the sessions that are open at a master: their leases, the graphs that they used last, and
// their steps that can be cancelled. Makes no calls to other tasks. Thread-safe.
class MasterSessions {
 public:
  // Maximum number of graphs of a session. Beyond it, the graph that was used longest ago is
  // evicted, unless a step of it is in flight. A client that still uses it registers it again.
  static constexpr size_t kMostGraphs = 256;

  // Opens a session, or renews the lease of an open one. Returns INVALID_ARGUMENT if the id or the
  // lease is not allowed, and NOT_FOUND if its client has closed it (reject).
  absl::Status open(uint64_t session, const SessionSettings& settings);
  // Closes a session. Returns the tasks that hold something of it; nullopt if it is not open.
  std::optional<std::set<TaskId>> close(uint64_t session);
  // Rejects requests to open a session, because its client has closed it. A renewal may still be
  // under way, and would open it again. The sessions that were closed last are remembered.
  void reject(uint64_t session);
  // Closes all sessions. No session can be opened afterwards.
  void stop();
  // Returns true once stop() was called.
  bool stopped();
  // Returns the session's part in its job; null if it is not open or has no job.
  std::shared_ptr<SessionJob> job_of(uint64_t session);
  // Note that a request joins the session's job, and that it is done. begin_join() fails with
  // UNAVAILABLE if another request is joining it, and like open(), so that a request which cannot
  // open the session does not begin a generation first.
  absl::Status begin_join(uint64_t session, const SessionSettings& settings);
  void end_join(uint64_t session);

  struct Lookup {
    SessionSettings settings;
    std::shared_ptr<MasterGraph> graph;  // null if the session does not have it
  };
  // Returns an error if the session is not open.
  absl::StatusOr<Lookup> look_up(uint64_t session, uint64_t graph);
  // Returns the graph, or null if the session does not have it: it was not registered, or was
  // evicted. Returns an error if the session is not open. Renews the lease.
  absl::StatusOr<std::shared_ptr<MasterGraph>> find_graph(uint64_t session, uint64_t graph);

  // Adds a graph to the session and notes that `tasks` hold something of the session. Renews the
  // lease. Returns the graph that the session uses from now on: if it already has one with this
  // number, it keeps that.
  absl::StatusOr<std::shared_ptr<MasterGraph>> add_graph(uint64_t session, uint64_t number,
                                                         std::shared_ptr<MasterGraph> graph,
                                                         const std::set<TaskId>& tasks);

  // Keep and drop a running step that can be cancelled, by its token. add_step() returns false if
  // the step was cancelled before: it must not start.
  [[nodiscard]] bool add_step(uint64_t session, uint64_t token, std::weak_ptr<RunningStep> step);
  void remove_step(uint64_t session, uint64_t token);
  // Notes that the step with this token is cancelled, and returns it if it is running.
  std::shared_ptr<RunningStep> cancel_step(uint64_t session, uint64_t token);

  // A session whose lease is to be renewed at these tasks.
  struct Renewal {
    uint64_t session;
    std::set<TaskId> tasks;
    Duration lease;
  };
  struct Review {
    std::vector<std::shared_ptr<MasterGraph>> graphs;  // graphs of all sessions
    std::vector<uint64_t> expired;                     // sessions whose lease has run out
    std::vector<Renewal> renewals;                     // renewals that are due
  };
  // Returns the work that is due. Assumes that the caller makes the renewals, and returns each of
  // them once.
  Review review(Time now);

 private:
  struct Session {
    SessionSettings settings;
    Time until;                                             // end of the lease
    Time renewed;                                           // time of the last renewal at the tasks
    LruMap<uint64_t, std::shared_ptr<MasterGraph>> graphs;  // by number
    std::set<TaskId> tasks;                                 // tasks that hold something of it
    std::unordered_map<uint64_t, std::weak_ptr<RunningStep>> running;  // cancellable steps by token
    std::list<uint64_t> cancelled;  // tokens that were cancelled, the latest first
  };

  // Returns the error if the session's client has closed it.
  absl::Status check_not_closed(uint64_t session) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::unordered_map<uint64_t, Session> sessions_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> joining_ ABSL_GUARDED_BY(mutex_);  // sessions that are joining their job
  std::list<uint64_t> closed_ ABSL_GUARDED_BY(mutex_);  // sessions closed by clients, latest first
};

}  // namespace trireme::internal
