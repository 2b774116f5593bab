#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
#include "trireme/runtime/session_job.h"
#include "trireme/runtime/variable_host.h"

namespace trireme {

namespace internal {
class CollectiveHost;  // collective/collective_host.h
}

// State of a server that its services share. Outlives the services.
struct TaskContext {
  ClusterSpec spec;
  TaskId task;
  std::string address;  // address of the task in the spec
  DeviceList devices;
  int step_threads = 1;      // number of threads that run the operators of steps
  uint64_t start_bytes = 0;  // limit on the bytes of inputs of steps in flight that clients started
  uint64_t incarnation = 0;
  std::string checkpoint_root;  // folder inside which the task may read and write checkpoints
  std::string data_root;        // folder inside which the task may read files of datasets
  Time started;
  Credentials credentials = Credentials::loopback();
  std::shared_ptr<FaultInjector>
      faults;  // faults injected into calls to other tasks; null for none
  // Queues of the threads that serve calls. Channels to other tasks receive their answers on them.
  std::shared_ptr<internal::ServingQueues> serving;
  // Lanes that other tasks make through the port of the task. Null if the task has certificates:
  // lanes are not encrypted.
  std::shared_ptr<internal::LaneTable> lanes;
  Metrics metrics;
  std::shared_ptr<VariableHost> variables;                // set by the service of ps/
  JoinSessionJob join_job;                                // set by the service of ps/
  std::shared_ptr<internal::CollectiveHost> collectives;  // set by the service of collective/
  // Returns one line for each operation that waits for other tasks; set by the service of
  // collective/.
  std::function<std::vector<std::string>()> waits;
  // Called when the chief ends the job. Returns true if the server exits with it.
  std::function<bool(const std::string& reason)> end_job;
};

// Creates a service for one server. Modules that serve calls provide one.
using ServiceFactory = std::function<std::unique_ptr<Service>(TaskContext&)>;

struct TaskServerOptions {
  ClusterSpec spec;
  TaskId task;
  // Devices of the task; by default the CPU and the accelerators of the machine.
  std::optional<DeviceList> devices = {};
  int step_threads = 0;  // 0 for as many threads as LibTorch uses for one operator
  // Limit on the bytes of inputs of steps in flight; further steps wait at their clients.
  uint64_t start_bytes = uint64_t{512} << 20;
  Credentials credentials = Credentials::loopback();
  std::string bind_host;  // host to listen on; empty for that of the task's address
  ServerLimits limits;    // limits on the memory that peers can make the server hold
  std::shared_ptr<FaultInjector> faults = nullptr;
  bool exit_with_job = false;  // true if wait() returns when the chief ends the job
  // Folder inside which clients may let the task read and write checkpoints; empty for the working
  // directory.
  std::string checkpoint_root = {};
  // Folder inside which clients may let the task read files of datasets; empty for none.
  std::string data_root = {};
  std::vector<ServiceFactory> services;
};

// The server of one task of a cluster: a port and the services that modules offer on it.
// Thread-safe.
class TaskServer {
 public:
  // Returns an error if the task is not in the spec, or its address may not be bound or is in use.
  static absl::StatusOr<std::unique_ptr<TaskServer>> start(TaskServerOptions options);
  // Stops the server without waiting for calls in flight to complete.
  ~TaskServer();

  const TaskContext& context() const { return *context_; }
  const RpcServer& rpc() const { return *rpc_; }

  // Blocks until `stop` is requested, the server is stopped, or the job ends and the server was
  // started with exit_with_job. Returns false if none of this happens by the deadline.
  bool wait(std::stop_token stop = {}, Time deadline = Time::max());
  // Lets calls in flight complete until the deadline, then cancels them. Returns when no call runs.
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
