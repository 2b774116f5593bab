#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"
#include "trireme/runtime/master_graph.h"
#include "trireme/runtime/master_sessions.h"
#include "trireme/runtime/master_step.h"
#include "trireme/runtime/master_tasks.h"
#include "trireme/runtime/peer_channels.h"
#include "trireme/runtime/task_devices.h"
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
  void start_step(uint64_t session, std::shared_ptr<MasterGraph> graph,
                  std::shared_ptr<const MasterGraph::Registered> registered, StepInputs inputs,
                  OnStepResult done);
  // Returns null, and sets `waits_for`, if tasks that the graph names are not up.
  absl::StatusOr<std::shared_ptr<MasterGraph>> place_and_cut(uint64_t session,
                                                             const SessionSettings& settings,
                                                             std::shared_ptr<const GraphData> data,
                                                             Time deadline, std::string& waits_for);
  absl::StatusOr<std::vector<VariablePlace>> find_variables(
      const MasterGraph& graph, const MasterGraph::Registered& registered,
      const std::string& container, Time deadline);
  absl::StatusOr<std::shared_ptr<const MasterGraph::Registered>> ensure_registered(
      const std::shared_ptr<MasterGraph>& graph, Time deadline);
  absl::Status register_parts(const MasterGraph& graph, const MasterGraph::Registered& registered,
                              Time deadline);
  void look_after_sessions();

  TaskContext& context_;
  const std::shared_ptr<Worker> worker_;
  Executor& executor_;
  MasterTasks tasks_;
  TaskDevices devices_;
  MasterSessions sessions_;
  std::atomic<uint64_t> next_registration_;
  Mutex registering_;  // held by one registration at a time: a second one finds it done
};

}  // namespace trireme::internal
