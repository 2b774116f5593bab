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

#include "absl/status/statusor.h"
#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"
#include "trireme/runtime/life_signs.h"
#include "trireme/runtime/master_graph.h"
#include "trireme/runtime/master_step.h"
#include "trireme/runtime/peer_channels.h"
#include "trireme/runtime/task_server.h"
#include "trireme/runtime/worker.h"

namespace trireme::internal {

struct VariablePlace {
  std::string name;
  TaskId task;
  uint64_t incarnation = 0;
  bool exists = false;
};

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
