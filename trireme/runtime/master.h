#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"
#include "trireme/graph/cutter.h"
#include "trireme/graph/placer.h"
#include "trireme/runtime/life_signs.h"
#include "trireme/runtime/peer_channels.h"
#include "trireme/runtime/task_server.h"
#include "trireme/runtime/worker.h"

namespace trireme::internal {

struct SessionSettings {
  std::string container;  // empty: its own
  Duration lease = std::chrono::seconds(60);
  bool strict_placement = false;
};

struct VariablePlace {
  std::string name;
  TaskId task;
  uint64_t incarnation = 0;
  bool exists = false;
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
    std::vector<std::shared_ptr<Channel>> channels;  // of each part; none for the master's own
    std::map<TaskId, uint64_t> incarnations;
    std::shared_ptr<LifeSigns> life;
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

struct StepInputs {
  std::vector<at::Tensor> tensors;
  uint64_t seed = 0;
  uint64_t step = 0;
  Time deadline;
  uint64_t token = 0;  // by which it can be cancelled; 0: it cannot
};
using OnStepResult = absl::AnyInvocable<void(absl::StatusOr<std::vector<at::Tensor>>)>;

// Places and cuts the graphs of the sessions that are with this server, and runs steps over all
// tasks that have a part. Methods that may wait for other tasks block, and belong on an executor.
// Thread-safe.
class Master : public std::enable_shared_from_this<Master> {
 public:
  Master(TaskContext& context, PeerChannels& channels, std::shared_ptr<Worker> worker,
         Executor& executor);

  void start();
  void stop();

  absl::Status open_session(uint64_t session, const SessionSettings& settings);
  void close_session(uint64_t session, Time deadline);

  struct NewGraph {
    std::vector<VariablePlace> variables;
    std::shared_ptr<MasterGraph> graph;  // none: tasks that it names are not up
    std::string waits_for;               // which and why
  };
  absl::StatusOr<NewGraph> register_graph(uint64_t session, uint64_t graph,
                                          std::shared_ptr<const GraphData> data, Time deadline);
  absl::Status create_variables(uint64_t session, uint64_t graph,
                                const std::vector<uint32_t>& variables,
                                const std::vector<at::Tensor>& initial, Time deadline);

  // Does not block; calls back once.
  void run_step(uint64_t session, uint64_t graph, StepInputs inputs, OnStepResult done);
  void cancel_step(uint64_t session, uint64_t token);

 private:
  struct Session {
    SessionSettings settings;
    Time until;  // its lease
    Time renewed;
    std::unordered_map<uint64_t, std::shared_ptr<MasterGraph>> graphs;
    std::list<uint64_t> recent;  // the most recently used first
    std::set<TaskId> tasks;      // that have something of it
    // Steps that can be cancelled, by their token.
    std::unordered_map<uint64_t, std::weak_ptr<RunningStep>> running;
  };

  void start_step(uint64_t session, std::shared_ptr<MasterGraph> graph,
                  std::shared_ptr<const MasterGraph::Registered> registered, StepInputs inputs,
                  OnStepResult done);
  absl::StatusOr<std::shared_ptr<MasterGraph>> find_graph(uint64_t session, uint64_t graph);
  absl::StatusOr<std::map<TaskId, DeviceList>> devices_of_tasks(const proto::GraphDef& def,
                                                                Time deadline,
                                                                std::string& waits_for);
  absl::StatusOr<std::shared_ptr<const MasterGraph::Registered>> ensure_registered(
      const std::shared_ptr<MasterGraph>& graph, Time deadline);
  void look_after_sessions();
  void renew_at_tasks(uint64_t session, const std::set<TaskId>& tasks, Duration lease);
  void drop_registrations(const MasterGraph& graph);

  TaskContext& context_;
  PeerChannels& channels_;
  const std::shared_ptr<Worker> worker_;
  Executor& executor_;
  const std::shared_ptr<LifeSigns> life_ = std::make_shared<LifeSigns>();
  std::atomic<uint64_t> next_registration_;
  Mutex registering_;  // one at a time: whoever comes second finds it done
  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::unordered_map<uint64_t, Session> sessions_ ABSL_GUARDED_BY(mutex_);
  std::map<TaskId, DeviceList> devices_ ABSL_GUARDED_BY(mutex_);  // of tasks that were asked
};

}  // namespace trireme::internal
