#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"
#include "trireme/runtime/part_step.h"
#include "trireme/runtime/peer_channels.h"
#include "trireme/runtime/task_server.h"
#include "trireme/runtime/worker_methods.h"

namespace trireme::internal {

// Returns the name of the container that belongs to this session alone.
std::string own_container(uint64_t session);

// Variables that a session creates on one task.
struct NewVariables {
  uint64_t session = 0;
  Duration lease = {};
  VariableScope scope;
  std::vector<std::string> names;
  // Full name of the device of each variable. Masters of older versions give none, which stands for
  // the CPU.
  std::vector<std::string> devices;
  std::vector<at::Tensor> initial;  // initial value of each variable
};

// Runs the parts of graphs that masters have registered with this task, and keeps what belongs to
// their sessions: parts, steps and variables. A session is dropped here when its master ends it, or
// when its lease runs out without a renewal.
// Thread-safe. Must be held by a shared_ptr. The context and the channels must outlive it.
class Worker : public std::enable_shared_from_this<Worker> {
 public:
  // Operators run on the executor, which must not end before stop() was called.
  Worker(TaskContext& context, PeerChannels& channels, Executor& executor);

  // Begins to check leases and deadlines periodically. Call it once, after the worker is held by a
  // shared_ptr.
  void start();
  // Aborts all steps and rejects new parts.
  void stop();

  // A part of a graph, as its master registers it.
  struct NewPart {
    uint64_t session = 0;
    uint64_t registration = 0;  // chosen by the master, never used again
    VariableScope scope;        // names of the session's variables
    Duration lease = {};
    TaskId master;
    std::shared_ptr<const GraphData> graph;
    std::map<std::string, uint64_t> incarnations;  // incarnations of the tasks it may send to
  };
  absl::Status register_part(const NewPart& part);
  // Drops the parts with these registrations and aborts their steps.
  void drop_parts(const std::vector<uint64_t>& registrations);

  // Runs the part of the step on this task. Calls `done` once, on any thread. Steps of the
  // registration before `oldest` are over on all tasks, and what is left of them here is dropped.
  void run_part(const StepKey& key, uint64_t oldest, PartInputs inputs, OnPartResult done);
  // Takes values that other tasks send to the part, possibly before it is asked to run. The
  // deadline is that of the step: if it never runs, the values are dropped soon after.
  absl::Status deliver(const StepKey& key, std::vector<CrossingValue> values, Time deadline);
  // Ends the step here with the error `why`. A step that has not started will not start.
  void abort_step(const StepKey& key, absl::Status why);

  // Returns, for each name, true if the scope has the variable.
  absl::StatusOr<std::vector<bool>> find_variables(const VariableScope& scope,
                                                   const std::vector<std::string>& names);
  // Creates the variables that the scope does not have.
  absl::Status make_variables(const NewVariables& made);

  // Extends the session's lease. Returns false if the session has nothing here.
  bool renew_session(uint64_t session, Duration lease);
  // Drops the session's parts, and its variables unless they are in a shared container.
  void end_session(uint64_t session);

 private:
  struct Registration {
    std::shared_ptr<RegisteredPart> part;
    std::map<uint64_t, std::shared_ptr<PartStep>> steps;  // steps in flight by number
    // Steps that are over: all numbers below `over_below`, and those in `over`. Values and requests
    // that arrive for them are too late.
    uint64_t over_below = 0;
    std::set<uint64_t> over;
  };

  // Returns null if the part is not registered or the step is over. Sets `made` to true if the step
  // was not here before.
  std::shared_ptr<PartStep> find_or_make_step(const StepKey& key, bool* made)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the step and records that it is over.
  void forget_step(const StepKey& key);
  // Does the same, and returns the step; null if it was not here.
  std::shared_ptr<PartStep> take_step(Registration& registration, uint64_t number)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Extends the lease of the session, and begins it if it is new here.
  void touch_session(uint64_t session, Duration lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Aborts steps that are past their deadline and ends sessions whose lease has run out.
  void expire_steps_and_sessions();
  // Returns the host of the task's variables; an error if this server has none.
  absl::StatusOr<std::shared_ptr<VariableHost>> variables() const;

  TaskContext& context_;
  PeerChannels& channels_;
  Executor& executor_;
  StepGauges gauges_;
  Gauge& sessions_gauge_;
  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::unordered_map<uint64_t, Registration> registrations_ ABSL_GUARDED_BY(mutex_);  // by id
  std::unordered_map<uint64_t, Time> leases_ ABSL_GUARDED_BY(mutex_);  // end of lease by session
};

}  // namespace trireme::internal
