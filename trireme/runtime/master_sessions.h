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

// The sessions that are open at a master: their leases, their graphs, of which the most recently
// used are kept, and their steps that can be cancelled. It makes no calls. Thread-safe.
class MasterSessions {
 public:
  absl::Status open(uint64_t session, const SessionSettings& settings);
  // Returns the tasks that hold something of the session; nullopt if it is not open.
  std::optional<std::set<TaskId>> close(uint64_t session);
  // Closes all; from then on none can be opened.
  void stop();
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
    std::shared_ptr<MasterGraph> graph;                 // the one that the session uses
    std::vector<std::shared_ptr<MasterGraph>> dropped;  // those that it does not use any more
  };
  // Gives the session a graph, and notes that these tasks hold something of it. Renews the lease.
  // If the session has a graph of this number already, it keeps that one.
  absl::StatusOr<Added> add_graph(uint64_t session, uint64_t number,
                                  std::shared_ptr<MasterGraph> graph,
                                  const std::set<TaskId>& tasks);

  // Steps that can be cancelled, by their token.
  void add_step(uint64_t session, uint64_t token, std::weak_ptr<RunningStep> step);
  void remove_step(uint64_t session, uint64_t token);
  std::shared_ptr<RunningStep> find_step(uint64_t session, uint64_t token);

  struct Renewal {
    uint64_t session;
    std::set<TaskId> tasks;
    Duration lease;
  };
  struct Review {
    std::vector<std::shared_ptr<MasterGraph>> graphs;  // of all sessions
    std::vector<uint64_t> expired;                     // sessions whose lease has run out
    std::vector<Renewal> renewals;                     // leases to be renewed at the tasks
  };
  // Returns the work that is due. Counts the renewals as made.
  Review review(Time now);

 private:
  struct Session {
    SessionSettings settings;
    Time until;    // end of the lease
    Time renewed;  // time of the last renewal at the tasks
    std::unordered_map<uint64_t, std::shared_ptr<MasterGraph>> graphs;
    std::list<uint64_t> recent;  // numbers of the graphs, the most recently used first
    std::set<TaskId> tasks;      // that hold something of the session
    std::unordered_map<uint64_t, std::weak_ptr<RunningStep>> running;  // by token
  };

  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::unordered_map<uint64_t, Session> sessions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
