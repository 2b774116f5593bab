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
#include "trireme/base/mutex.h"
#include "trireme/runtime/master_graph.h"

namespace trireme::internal {

// Keeps the sessions that are open at a master: their leases, their most recently registered
// graphs, and their steps that can be cancelled. Makes no calls to other tasks. Thread-safe.
class MasterSessions {
 public:
  // Opens a session, or renews the lease of an open one. Returns INVALID_ARGUMENT if the id or the
  // lease is not allowed.
  absl::Status open(uint64_t session, const SessionSettings& settings);
  // Closes a session. Returns the tasks that hold something of it; nullopt if it is not open.
  std::optional<std::set<TaskId>> close(uint64_t session);
  // Closes all sessions. No session can be opened afterwards.
  void stop();
  // Returns true once stop() was called.
  bool stopped();

  struct Lookup {
    SessionSettings settings;
    std::shared_ptr<MasterGraph> graph;  // null if the session does not have it
  };
  // Returns an error if the session is not open.
  absl::StatusOr<Lookup> look_up(uint64_t session, uint64_t graph);
  // Returns an error if the session is not open, or does not have the graph. Renews the lease.
  absl::StatusOr<std::shared_ptr<MasterGraph>> find_graph(uint64_t session, uint64_t graph);

  struct Added {
    std::shared_ptr<MasterGraph> graph;                 // the graph that the session uses
    std::vector<std::shared_ptr<MasterGraph>> dropped;  // graphs that the session no longer uses
  };
  // Adds a graph to the session and notes that `tasks` hold something of the session. Renews the
  // lease. If the session already has a graph with this number, it keeps that one.
  absl::StatusOr<Added> add_graph(uint64_t session, uint64_t number,
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
    Time until;    // end of the lease
    Time renewed;  // time of the last renewal at the tasks
    std::unordered_map<uint64_t, std::shared_ptr<MasterGraph>> graphs;
    std::list<uint64_t> recent;  // numbers of the graphs, the most recently registered first
    std::set<TaskId> tasks;      // tasks that hold something of the session
    std::unordered_map<uint64_t, std::weak_ptr<RunningStep>> running;  // cancellable steps by token
    std::list<uint64_t> cancelled;  // tokens that were cancelled, the latest first
  };

  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::unordered_map<uint64_t, Session> sessions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
