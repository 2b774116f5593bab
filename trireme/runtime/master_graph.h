#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/placement/cutter.h"
#include "trireme/placement/placer.h"
#include "trireme/runtime/session_job.h"
#include "trireme/runtime/task_stub.h"
#include "trireme/runtime/variable_host.h"

namespace trireme::internal {

struct SessionSettings {
  // Container of the session's variables. Empty in OpenSession for one that only this session uses.
  std::string container;
  Duration lease = std::chrono::seconds(60);  // time without a renewal after which it ends
  bool strict_placement = false;              // true: a device that its task lacks is an error
  SessionJobOptions job = {};                 // job that a shared container belongs to
  std::shared_ptr<SessionJob> member = {};    // the session's part in that job; null without one

  // Returns the names of the session's variables on its tasks.
  VariableScope scope() const {
    if (member == nullptr) return container;
    return {job.id, member->generation(), container};
  }
};

// A step in flight, as the graph and the session that it belongs to see it. Thread-safe.
class RunningStep {
 public:
  virtual ~RunningStep() = default;
  // Starts the step. Call it once.
  virtual void start() = 0;
  // Checks the health of the tasks that the step waits for, if that is due. Called several times a
  // second, by one thread at a time.
  virtual void check_tasks() = 0;
  // Ends the step on all tasks, with CANCELLED.
  virtual void cancel() = 0;
};

// A graph of a session, placed on tasks and cut into one part for each. Its parts are registered
// with their tasks when they are first needed, and again after a task was restarted. Also numbers
// the steps of the graph. Thread-safe.
class MasterGraph {
 public:
  MasterGraph(uint64_t session, SessionSettings settings, PlacedGraph placed,
              std::vector<GraphPart> parts);

  const PlacedGraph& placed() const { return placed_; }
  const std::vector<GraphPart>& parts() const { return parts_; }
  uint64_t session() const { return session_; }
  const SessionSettings& settings() const { return settings_; }

  // One registration of the parts with their tasks.
  struct Registered {
    uint64_t id = 0;                               // never used again
    std::vector<std::shared_ptr<TaskStub>> tasks;  // the task of each part
    std::map<TaskId, uint64_t> incarnations;       // incarnations of these tasks and of the master
  };
  // Returns the current registration; null if the parts must be registered, or registered again.
  std::shared_ptr<const Registered> registered() const;
  void set_registered(std::shared_ptr<const Registered> registered);
  // Drops this registration, if it is still the current one. Called when a step over it failed
  // because a task was lost. Its parts are released once no step holds it (MasterRegistrations).
  void invalidate(const Registered& registered);

  // Returns the number of the new step. Numbers increase, and each is used once.
  uint64_t begin_step(std::weak_ptr<RunningStep> step);
  void end_step(uint64_t number);
  // Returns the number of the oldest step in flight; the number of the next step if there is none.
  // Tasks drop what is left of steps before it.
  uint64_t oldest_step() const;
  // Returns true while a step is in flight.
  bool has_steps() const;
  // Calls check_tasks() of each step in flight.
  void check_steps();

 private:
  const uint64_t session_;
  const SessionSettings settings_;
  const PlacedGraph placed_;
  const std::vector<GraphPart> parts_;
  mutable Mutex mutex_;
  std::shared_ptr<const Registered> registered_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_step_ ABSL_GUARDED_BY(mutex_) = 1;
  // Steps in flight, by number.
  std::map<uint64_t, std::weak_ptr<RunningStep>> under_way_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
