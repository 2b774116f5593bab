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

// The name of the container that a session has for itself.
std::string own_container(uint64_t session);

// Runs the parts of graphs that masters have registered with this task, and holds what belongs to
// their sessions. What a session has here goes when it ends, or when its lease has run out without
// a renewal. Thread-safe.
class Worker : public std::enable_shared_from_this<Worker> {
 public:
  // Operators run on the executor, which must not end before stop() was called.
  Worker(TaskContext& context, PeerChannels& channels, Executor& executor);

  // Looks after leases; once, after it is in a shared_ptr.
  void start();
  // Ends all steps.
  void stop();

  struct NewPart {
    uint64_t session = 0;
    uint64_t registration = 0;
    std::string container;
    Duration lease = {};
    TaskId master;
    std::shared_ptr<const GraphData> graph;
    std::map<std::string, uint64_t> incarnations;
  };
  absl::Status register_part(const NewPart& part);
  void drop_parts(const std::vector<uint64_t>& registrations);

  // `oldest`: no step before it is under way any more.
  void run_part(const StepKey& key, uint64_t oldest, PartInputs inputs, OnPartResult done);
  // The deadline is that of the step: what came for one that never runs is dropped then.
  absl::Status deliver(const StepKey& key, std::vector<CrossingValue> values, Time deadline);
  void abort_step(const StepKey& key, absl::Status why);

  // Which of the names the container has. With tensors, those that it has not are made.
  absl::StatusOr<std::vector<bool>> find_variables(const std::string& container,
                                                   const std::vector<std::string>& names);
  absl::Status make_variables(uint64_t session, Duration lease, const std::string& container,
                              const std::vector<std::string>& names,
                              const std::vector<at::Tensor>& initial);

  bool renew_session(uint64_t session, Duration lease);
  void end_session(uint64_t session);

 private:
  struct Registration {
    std::shared_ptr<RegisteredPart> part;
    std::map<uint64_t, std::shared_ptr<PartStep>> steps;
    // Steps that are over: all below, and these. What arrives for them comes too late.
    uint64_t over_below = 0;
    std::set<uint64_t> over;
  };

  std::shared_ptr<PartStep> find_or_make_step(const StepKey& key, bool* made)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void forget_step(const StepKey& key);
  void touch_session(uint64_t session, Duration lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void end_what_is_late();
  absl::StatusOr<std::shared_ptr<VariableHost>> variables() const;

  TaskContext& context_;
  PeerChannels& channels_;
  Executor& executor_;
  StepGauges gauges_;
  Gauge& sessions_gauge_;
  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::unordered_map<uint64_t, Registration> registrations_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Time> leases_ ABSL_GUARDED_BY(mutex_);  // by session: until when
};

}  // namespace trireme::internal
