#include "trireme/server/in_process_cluster.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/server/services.h"

namespace trireme {

class InProcessCluster::Impl {
 public:
  explicit Impl(const InProcessClusterOptions& options) : devices_(options.devices) {
    spec_ = value_or_throw(
        pick_ports(options.spec.empty() ? spec_of_size(options) : options.spec, ports_));
    MutexLock lock(mutex_);
    for (const TaskId& task : spec_.all_tasks()) servers_[task] = make(task);
  }

  ~Impl() {
    // Stops the servers before any of them is destroyed, so that none waits for calls of another.
    MutexLock lock(mutex_);
    for (auto& [task, server] : servers_) {
      if (server) server->stop(Clock::real().now());
    }
  }

  const ClusterSpec& spec() const { return spec_; }

  void stop(const TaskId& task) {
    MutexLock lock(mutex_);
    slot(task).reset();
  }

  void start(const TaskId& task) {
    MutexLock lock(mutex_);
    std::unique_ptr<TaskServer>& server = slot(task);
    if (!server) server = make(task);
  }

  bool is_running(const TaskId& task) {
    MutexLock lock(mutex_);
    return slot(task) != nullptr;
  }

 private:
  static ClusterSpec spec_of_size(const InProcessClusterOptions& options) {
    if (options.workers < 0 || options.ps < 0 || options.workers + options.ps == 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  absl::StrCat("cannot start an in-process cluster of ", options.workers,
                               " workers and ", options.ps, " ps; it needs at least one task"));
    }
    const auto tasks = [](int count) {
      return TaskAddresses(std::vector<std::string>(count, "127.0.0.1:0"));
    };
    return ClusterSpec{{"worker", tasks(options.workers)}, {"ps", tasks(options.ps)}};
  }

  std::unique_ptr<TaskServer> make(const TaskId& task) const {
    // The servers run in the program, which may use all of its files anyway.
    return value_or_throw(TaskServer::start({.spec = spec_,
                                             .task = task,
                                             .devices = devices_,
                                             .checkpoint_root = "/",
                                             .data_root = "/",
                                             .services = all_services()}));
  }

  std::unique_ptr<TaskServer>& slot(const TaskId& task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    spec_.address(task);  // throws if there is no such task
    return servers_[task];
  }

  const std::optional<DeviceList> devices_;
  std::vector<PortReservation> ports_;  // held, so that a stopped task finds its port free again
  ClusterSpec spec_;
  Mutex mutex_;
  std::map<TaskId, std::unique_ptr<TaskServer>> servers_ ABSL_GUARDED_BY(mutex_);
};

InProcessCluster::InProcessCluster(const InProcessClusterOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}
InProcessCluster::~InProcessCluster() = default;

const ClusterSpec& InProcessCluster::spec() const {
  return impl_->spec();
}
SimpleResolver InProcessCluster::resolver() const {
  return SimpleResolver(impl_->spec());
}
std::string InProcessCluster::target(const TaskId& task) const {
  return absl::StrCat("grpc://", impl_->spec().address(task));
}
void InProcessCluster::stop(const TaskId& task) {
  impl_->stop(task);
}
void InProcessCluster::start(const TaskId& task) {
  impl_->start(task);
}
bool InProcessCluster::is_running(const TaskId& task) const {
  return impl_->is_running(task);
}

}  // namespace trireme
