#include "trireme/runtime/task_server.h"

#include <ATen/Parallel.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/placement/local_devices.h"
#include "trireme/rpc/call_queue.h"
#include "trireme/rpc/lane.h"

// Services are created first and the port is opened last, so that no call arrives before all
// services exist. The services refer to the context, which stays at one address behind a pointer.
// They are owned by the RPC server, which is declared after the context and destroyed before it.
namespace trireme {

namespace {

// Fails if programs could read no files under the data root, so that a mistyped folder is noticed
// when the server starts.
absl::Status check_data_root(const TaskServerOptions& options) {
  std::error_code error;
  if (options.data_root.empty() || std::filesystem::is_directory(options.data_root, error)) {
    return absl::OkStatus();
  }
  return make_status(ErrorCode::kNotFound,
                     absl::StrCat("the data root '", options.data_root,
                                  "' is not a folder on this machine; create it, or give another "
                                  "--data-root"),
                     {options.task.to_string(), ""});
}

}  // namespace

absl::StatusOr<std::unique_ptr<TaskServer>> TaskServer::start(TaskServerOptions options) {
  TRIREME_RETURN_IF_ERROR(try_call([&] { options.spec.check_ports(); }));
  TRIREME_RETURN_IF_ERROR(check_data_root(options));
  auto context = std::make_unique<TaskContext>();
  TRIREME_ASSIGN_OR_RETURN(context->address,
                           try_call([&] { return options.spec.address(options.task); }));
  context->spec = std::move(options.spec);
  context->task = options.task;
  context->devices = options.devices.value_or(internal::local_device_list());
  context->step_threads = options.step_threads > 0 ? options.step_threads : at::get_num_threads();
  context->start_bytes = options.start_bytes;
  context->incarnation = new_incarnation();
  context->checkpoint_root = options.checkpoint_root;
  context->data_root = options.data_root;
  context->started = Clock::real().now();
  context->credentials = options.credentials;
  context->faults = options.faults;
  context->serving = std::make_shared<internal::ServingQueues>();
  if (!context->credentials.is_secure()) context->lanes = std::make_shared<internal::LaneTable>();

  std::unique_ptr<TaskServer> server(new TaskServer(std::move(context)));
  TaskContext& shared = *server->context_;
  shared.end_job = [server = server.get(), exits = options.exit_with_job](const std::string& why) {
    log_info(server->context_->task.to_string(), ": the job has ended (", why, ")",
             exits ? "; exiting with it" : "; waiting for the next one");
    if (exits) server->release_waiters();
    return exits;
  };
  std::vector<std::unique_ptr<Service>> services;
  for (const ServiceFactory& make : options.services) services.push_back(make(shared));

  std::string address = shared.address;
  if (!options.bind_host.empty()) {
    address = absl::StrCat(options.bind_host, address.substr(address.rfind(':')));
  }
  TRIREME_ASSIGN_OR_RETURN(server->rpc_, RpcServer::start({.address = address,
                                                           .task = shared.task.to_string(),
                                                           .incarnation = shared.incarnation,
                                                           .credentials = shared.credentials,
                                                           .limits = options.limits,
                                                           .metrics = &shared.metrics,
                                                           .serving = shared.serving,
                                                           .lanes = shared.lanes},
                                                          std::move(services)));
  return server;
}

TaskServer::~TaskServer() {
  stop(Clock::real().now());
}

bool TaskServer::wait(std::stop_token stop, Time deadline) {
  std::stop_callback on_stop(stop, [this] { release_waiters(); });
  MutexLock lock(mutex_);
  while (!ended_ && ended_changed_.wait_until(mutex_, deadline)) {
  }
  return ended_;
}

void TaskServer::stop(Time deadline) {
  if (rpc_) rpc_->stop(deadline);
  release_waiters();
}

void TaskServer::release_waiters() {
  MutexLock lock(mutex_);
  ended_ = true;
  ended_changed_.notify_all();
}

}  // namespace trireme
