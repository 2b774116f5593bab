#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/cluster/cluster_spec.h"
#include "trireme/cluster/device_spec.h"
#include "trireme/observe/metrics.h"
#include "trireme/rpc/credentials.h"
#include "trireme/rpc/fault_injector.h"
#include "trireme/rpc/server.h"
#include "trireme/runtime/variable_host.h"

namespace trireme {

// What a service may know of the server that it is part of. Outlives the service.
struct TaskContext {
  ClusterSpec spec;
  TaskId task;
  std::string address;  // as the spec gives it
  DeviceList devices;
  int step_threads = 1;      // that run the operators of steps
  uint64_t start_bytes = 0;  // of the inputs of steps that clients start, held at once
  uint64_t incarnation = 0;
  Time started;
  Credentials credentials = Credentials::loopback();
  std::shared_ptr<FaultInjector> faults;  // what its own calls to others suffer; none: nothing
  // For channels to others: their answers are taken in by the threads that serve.
  std::shared_ptr<internal::ServingQueues> serving;
  Metrics metrics;
  std::shared_ptr<VariableHost> variables;  // set by the service of ps/
  // Called when the chief ends the job; true if the server exits with it.
  std::function<bool(const std::string& reason)> end_job;
};

// A module that serves calls gives one of these to the servers that should offer them.
using ServiceFactory = std::function<std::unique_ptr<Service>(TaskContext&)>;

struct TaskServerOptions {
  ClusterSpec spec;
  TaskId task;
  DeviceList devices;
  int step_threads = 0;                        // 0: as many as LibTorch uses for one operator
  uint64_t start_bytes = uint64_t{512} << 20;  // of inputs; further steps wait at their clients
  Credentials credentials = Credentials::loopback();
  std::string bind_host;  // empty: the host of the task's own address
  ServerLimits limits;    // of what peers may make it hold
  std::shared_ptr<FaultInjector> faults = nullptr;
  bool exit_with_job = false;  // wait() returns when the chief ends the job
  std::vector<ServiceFactory> services;
};

// One task of a cluster: a port and the services that modules registered with it. Thread-safe.
class TaskServer {
 public:
  // Fails when the task is not in the spec, or its address may not be bound or is taken.
  static absl::StatusOr<std::unique_ptr<TaskServer>> start(TaskServerOptions options);
  ~TaskServer();  // stops at once

  const TaskContext& context() const { return *context_; }
  const RpcServer& rpc() const { return *rpc_; }

  // Blocks until the job ends (if the server was told to exit then), stop is requested, or it was
  // stopped otherwise.
  void wait(std::stop_token stop = {});
  // Lets calls under way end until the deadline, then cancels them. Returns when nothing runs.
  void stop(Time deadline);

 private:
  explicit TaskServer(std::unique_ptr<TaskContext> context) : context_(std::move(context)) {}
  void release_waiters();

  std::unique_ptr<TaskContext> context_;
  std::unique_ptr<RpcServer> rpc_;
  Mutex mutex_;
  CondVar ended_changed_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace trireme
