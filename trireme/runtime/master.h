#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"
#include "trireme/runtime/master_graph.h"
#include "trireme/runtime/master_registrations.h"
#include "trireme/runtime/master_sessions.h"
#include "trireme/runtime/master_step.h"
#include "trireme/runtime/master_tasks.h"
#include "trireme/runtime/peer_channels.h"
#include "trireme/runtime/task_devices.h"
#include "trireme/runtime/task_server.h"
#include "trireme/runtime/worker.h"

namespace trireme::internal {

// The place of one variable of a graph.
struct VariablePlace {
  std::string name;
  TaskId task;
  uint64_t incarnation = 0;  // incarnation of `task`; 0 if it has no part of the graph
  bool exists = false;       // true if the session's container on `task` has the variable
};

// Serves the sessions that clients have opened at this server: places and cuts their graphs,
// registers the parts with the tasks that run them, and runs steps over these tasks.
// register_graph() and create_variables() wait for other tasks: they block, and belong on an
// executor. Thread-safe. The context, the channels and the executor must outlive it.
class Master : public std::enable_shared_from_this<Master> {
 public:
  // Work that waits for other tasks before a step can start runs on `executor`.
  Master(TaskContext& context, PeerChannels& channels, std::shared_ptr<Worker> worker,
         Executor& executor);

  // Begins to check leases and running steps periodically. Call it once, after the master is held
  // by a shared_ptr.
  void start();
  // Forgets all sessions and rejects new ones.
  void stop();

  // Opens a session, or renews the lease of an open one. If the session takes part in a job,
  // `settings.member` is its part in it (job_of). If that is null, the session joins the job first,
  // which blocks. Only one request of a session joins at a time; others fail with UNAVAILABLE.
  // Returns the generation of the job; 0 without one.
  absl::StatusOr<uint64_t> open_session(uint64_t session, SessionSettings settings, Time deadline);
  // Returns the session's part in its job; null if it is not open or has no job.
  std::shared_ptr<SessionJob> job_of(uint64_t session) { return sessions_.job_of(session); }
  // Closes a session here and on all tasks that hold something of it, and leaves its job. Does not
  // wait for them.
  void close_session(uint64_t session, Time deadline);

  struct NewGraph {
    std::vector<VariablePlace> variables;  // in the order of the graph's variables
    std::shared_ptr<MasterGraph> graph;    // null if tasks that the graph names are not up
    std::string waits_for;                 // the tasks that are not up and why; empty if all are
  };
  // Places the graph and registers its parts. May be repeated with the same graph number: the graph
  // of the first call stays.
  absl::StatusOr<NewGraph> register_graph(uint64_t session, uint64_t graph,
                                          std::shared_ptr<const GraphData> data, Time deadline);
  // Creates the variables with these indices in the graph, from `initial`, on their tasks. A
  // variable that exists is left as it is.
  absl::Status create_variables(uint64_t session, uint64_t graph,
                                const std::vector<uint32_t>& variables,
                                const std::vector<at::Tensor>& initial, Time deadline);

  // Returns a registered graph, or null if the session does not have it: it was not registered, or
  // was evicted. Returns an error if the session is not open.
  absl::StatusOr<std::shared_ptr<MasterGraph>> find_graph(uint64_t session, uint64_t graph);
  // Runs one step of a graph that find_graph() returned. Does not block; calls `done` once.
  void run_step(std::shared_ptr<MasterGraph> graph, StepInputs inputs, OnStepResult done);
  // Cancels the step with this token (StepInputs::token) on all tasks, if it is running.
  void cancel_step(uint64_t session, uint64_t token);

 private:
  // Joins the job of a session and opens the session. Blocks.
  absl::StatusOr<uint64_t> join_and_open(uint64_t session, SessionSettings settings, Time deadline);
  // Starts a step over a registration. If that turns out to be outdated, the step fails.
  void start_step(std::shared_ptr<MasterGraph> graph,
                  std::shared_ptr<const MasterGraph::Registered> registered, StepInputs inputs,
                  OnStepResult done);
  // Returns null, and sets `waits_for`, if tasks that the graph names are not up.
  absl::StatusOr<std::shared_ptr<MasterGraph>> place_and_cut(uint64_t session,
                                                             const SessionSettings& settings,
                                                             std::shared_ptr<const GraphData> data,
                                                             Time deadline, std::string& waits_for);
  // Asks each task which of the graph's variables it has.
  absl::StatusOr<std::vector<VariablePlace>> find_variables(
      const MasterGraph& graph, const MasterGraph::Registered& registered, Time deadline);
  // Returns the current registration of the graph's parts, after making one if there is none.
  absl::StatusOr<std::shared_ptr<const MasterGraph::Registered>> ensure_registered(
      const std::shared_ptr<MasterGraph>& graph, Time deadline);
  // Sends each part to its task, and waits for all of them.
  absl::Status register_parts(const MasterGraph& graph, const MasterGraph::Registered& registered,
                              Time deadline);
  // Ends a session that is closed already on the tasks that hold something of it.
  void end_on_tasks(uint64_t session, std::set<TaskId> tasks, Time deadline);
  // Does the periodic work: checks running steps, releases parts that are no longer used, closes
  // sessions whose lease has run out, and renews the leases of the others at their tasks.
  void expire_and_renew_sessions();

  TaskContext& context_;
  const std::shared_ptr<Worker> worker_;
  Executor& executor_;
  MasterTasks tasks_;
  TaskDevices devices_;
  MasterSessions sessions_;
  MasterRegistrations registrations_;
  std::atomic<uint64_t> next_registration_;
  // Serializes registrations, so that a second caller finds the work of the first done. Held while
  // calls to other tasks are waited for.
  Mutex registering_;
};

}  // namespace trireme::internal
