#include "trireme/server/server.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/file_limit.h"
#include "trireme/base/ids.h"
#include "trireme/base/logging.h"
#include "trireme/base/reminder.h"
#include "trireme/base/signals.h"
#include "trireme/base/status.h"
#include "trireme/base/version.h"
#include "trireme/cluster/address.h"
#include "trireme/cluster/device_spec.h"
#include "trireme/placement/accelerator_info.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/server/services.h"

namespace trireme {
namespace {

// Longest time that stop() lets calls in flight complete.
constexpr auto kDrain = std::chrono::seconds(10);

TaskId own_task(const Cluster& cluster) {
  if (cluster.task) return *cluster.task;
  throw Error(ErrorCode::kInvalidArgument,
              "this process has no task to serve; set it with TF_CONFIG's \"task\" or with "
              "--task_type and --task_index");
}

// Returns the cluster's spec. If the task's port is 0, the spec has a port that is reserved in
// `ports`. Other tasks would not learn it.
ClusterSpec own_spec(const Cluster& cluster, std::vector<PortReservation>& ports) {
  const TaskId task = own_task(cluster);
  const std::string& address = cluster.spec.address(task);
  if (internal::Address::parse_own(address).port != 0) return cluster.spec;
  if (cluster.spec.all_tasks().size() > 1) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat(task.to_string(), " cannot serve at '", address,
                             "': the other tasks of its cluster would not learn the port that it "
                             "picks. Give every task a port, or serve all of them in one process, "
                             "with tr::InProcessCluster({.spec = spec})"));
  }
  return value_or_throw(pick_ports(cluster.spec, ports));
}

TaskServerOptions to_task_options(const Cluster& cluster, const ServerOptions& options,
                                  std::vector<PortReservation>& ports) {
  const TaskId task = own_task(cluster);
  const std::string& certs = options.certs.empty() ? cluster.certs : options.certs;
  const bool insecure = options.insecure || cluster.insecure;
  return {.spec = own_spec(cluster, ports),
          .task = task,
          .devices = options.devices,
          .credentials = value_or_throw(Credentials::of_server(certs, insecure, task)),
          .bind_host = options.bind_host,
          .exit_with_job = options.exit_with_job,
          .checkpoint_root = options.checkpoint_root,
          .data_root = options.data_root,
          .services = all_services(options.memory_limit)};
}

// Returns true once a program has used the server, other than to ask whether it is up.
bool was_used(const TaskContext& context) {
  for (const auto& [name, value] : context.metrics.counters()) {
    const bool asks = absl::StrContains(name, "/trireme.Hello/") ||
                      absl::StrContains(name, "/trireme.Server/Describe");
    if (value > 0 && !asks && absl::StartsWith(name, "rpc_server/")) return true;
  }
  return false;
}

// Logs a line for each GPU. The lines are for people only, so a failure does not keep the server
// from starting.
void log_accelerators(const TaskId& task) try {
  for (const internal::AcceleratorInfo& accelerator : internal::cuda_accelerators()) {
    log_info(task.to_string(), ": ", internal::describe(accelerator));
  }
} catch (const c10::Error& error) {
  log_warning(task.to_string(),
              ": CUDA cannot describe the GPUs of this machine: ", error.what_without_backtrace());
}

}  // namespace

class Server::Impl {
 public:
  Impl(const Cluster& cluster, const ServerOptions& options)
      : exits_with_job_(options.exit_with_job) {
    if (options.threads < 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  absl::StrCat("threads is ", options.threads, "; it must be 0 or more"));
    }
    raise_file_limit();
    if (options.threads > 0) at::set_num_threads(options.threads);
    std::vector<PortReservation> ports;  // held until the server has bound them
    server_ = value_or_throw(TaskServer::start(to_task_options(cluster, options, ports)));
    const TaskContext& context = server_->context();
    // The line "serves at" comes last: launchers wait for it, and the others must precede it.
    if (context.devices.gpus > 0) log_accelerators(context.task);
    if (options.insecure || cluster.insecure) {
      log_warning(context.task.to_string(), ": listening on ", context.address,
                  " without certificates: anyone who can reach this port controls the server");
    }
    log_info(context.task.to_string(), " serves at ", context.address, " (incarnation ",
             format_incarnation(context.incarnation), ", pid ", getpid(), ", devices ",
             short_device_names(context.devices.names(context.task)), ", trireme ", version(), ")");
  }

  TaskServer& server() { return *server_; }
  bool exits_with_job() const { return exits_with_job_; }

 private:
  const bool exits_with_job_;
  std::unique_ptr<TaskServer> server_;
};

Server::Server(const Cluster& cluster, const ServerOptions& options)
    : impl_(std::make_unique<Impl>(cluster, options)) {}

Server::Server(const ClusterSpec& spec, const std::string& job, int index,
               const ServerOptions& options)
    : Server(Cluster(spec, TaskId{job, index}), options) {}

Server::Server(Server&&) noexcept = default;

Server::~Server() {
  if (impl_) stop();
}

const TaskId& Server::task() const {
  return impl_->server().context().task;
}

std::string Server::target() const {
  return absl::StrCat("grpc://", impl_->server().context().address);
}

uint64_t Server::incarnation() const {
  return impl_->server().context().incarnation;
}

int Server::join() {
  {
    StopOnSignal signals;
    TaskServer& server = impl_->server();
    // Without a chief's program this one would serve for ever, and nobody would know why.
    for (Reminder reminder; !server.wait(signals.token(), reminder.next());) {
      if (!reminder.is_due() || !impl_->exits_with_job() || was_used(server.context())) continue;
      log_warning(task().to_string(),
                  " serves, but no chief's program has used it yet; start the program once more, "
                  "with the same cluster spec and as its chief: with --task_type chief, or with "
                  "\"type\": \"chief\" in TF_CONFIG's \"task\"");
    }
  }
  stop();
  return 0;
}

void Server::stop() {
  impl_->server().stop(after(kDrain));
}

}  // namespace trireme
