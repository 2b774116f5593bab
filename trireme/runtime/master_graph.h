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
#include "trireme/runtime/task_stub.h"

namespace trireme::internal {

struct SessionSettings {
  std::string container;  // empty: its own
  Duration lease = std::chrono::seconds(60);
  bool strict_placement = false;
};

// A step that is under way.
class RunningStep {
 public:
  virtual ~RunningStep() = default;
  virtual void start() = 0;
  // Called now and then.
  virtual void look_after() = 0;
  virtual void cancel() = 0;
};

// A graph of a session, placed and cut. The parts are registered with their tasks when they are
// first needed, and again after one of these was started anew. Thread-safe.
class MasterGraph {
 public:
  MasterGraph(uint64_t session, SessionSettings settings, PlacedGraph placed,
              std::vector<GraphPart> parts);

  const PlacedGraph& placed() const { return placed_; }
  const std::vector<GraphPart>& parts() const { return parts_; }
  uint64_t session() const { return session_; }
  const SessionSettings& settings() const { return settings_; }

  // The parts as they are registered now; none if they have to be (again).
  struct Registered {
    uint64_t id = 0;
    std::vector<std::shared_ptr<TaskStub>> tasks;  // the task of each part
    std::map<TaskId, uint64_t> incarnations;       // of these tasks and of the master's own
  };
  std::shared_ptr<const Registered> registered() const;
  void set_registered(std::shared_ptr<const Registered> registered);
  // A step over this registration failed because a task was lost.
  void invalidate(const Registered& registered);

  uint64_t begin_step(std::weak_ptr<RunningStep> step);
  void end_step(uint64_t number);
  uint64_t oldest_step() const;
  void look_after_steps();

 private:
  const uint64_t session_;
  const SessionSettings settings_;
  const PlacedGraph placed_;
  const std::vector<GraphPart> parts_;
  mutable Mutex mutex_;
  std::shared_ptr<const Registered> registered_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_step_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, std::weak_ptr<RunningStep>> under_way_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
