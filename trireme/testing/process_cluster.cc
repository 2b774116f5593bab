#include "trireme/testing/process_cluster.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/status.h"
#include "trireme/rpc/certificates.h"
#include "trireme/testing/wait_until.h"

// `processes_` has the tasks that the test has started and not killed or stopped. A process in it
// that has ended is therefore one that ended by itself, which the destructor reports as a failure
// of the test. Ports are reserved for the life of the cluster, so that a restarted task gets its
// address again. With proxies, a task listens on the loopback of its host, and its proxy listens at
// the address that the cluster spec names.

namespace trireme {
namespace {

// Returns true if all threads of a process are stopped.
bool is_stopped(pid_t pid) {
  const std::string threads = absl::StrCat("/proc/", pid, "/task");
  std::error_code ignored;  // a thread may end meanwhile
  for (const auto& thread : std::filesystem::directory_iterator(threads, ignored)) {
    std::ifstream file(thread.path() / "stat");
    const std::string stat((std::istreambuf_iterator<char>(file)), {});
    const size_t name_end = stat.rfind(") ");
    if (name_end != std::string::npos && stat[name_end + 2] != 'T') return false;
  }
  return true;
}

// Time limit for a task to stop. A server drains for up to ten seconds.
constexpr auto kStopLimit = std::chrono::seconds(20);
// Port of every task that has a host of its own, where all ports are free.
constexpr char kPort[] = ":2222";

}  // namespace

std::string trireme_binary() {
  if (const char* given = std::getenv("TRIREME_BINARY")) return given;
  const char* name = std::getenv("TRIREME_STAND_IN_DEVICES") ? "trireme_stand_in" : "trireme";
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

ProcessCluster::ProcessCluster(const ProcessClusterOptions& options)
    : network_(options.network), flags_(options.flags), environment_(options.environment) {
  spec_ = ClusterSpec(std::map<std::string, TaskAddresses>{{"worker", reserve(options.workers)},
                                                           {"ps", reserve(options.ps)}});
  if (!options.certs.empty()) {
    if (!std::filesystem::exists(std::filesystem::path(options.certs) / kAuthorityFile)) {
      throw_if_error(write_certificates(options.certs, spec_).status());
    }
    credentials_ = value_or_throw(Credentials::from_folder(options.certs, std::nullopt));
    flags_.insert(flags_.end(), {"--certs", options.certs});
  }
  if (options.proxies) {
    flags_.insert(flags_.end(), {"--bind", "127.0.0.1"});
    for (const TaskId& task : spec_.all_tasks()) {
      network_->in_host(host(task), [&] {
        proxies_[task] =
            std::make_unique<TcpProxy>(absl::StrCat("127.0.0.1", kPort), 0, spec_.address(task));
      });
    }
  }
  if (!options.start) return;
  for (const TaskId& task : spec_.all_tasks()) start(task);
  wait_until_up();
}

ProcessCluster::~ProcessCluster() {
  for (const auto& [task, process] : processes_) {
    if (const auto ended = process->wait(Time::min())) {
      ADD_FAILURE() << task << " ended by itself: " << ended->to_string() << "\n"
                    << absl::StrJoin(logs(task), "\n");
    }
    process->send_signal(SIGCONT);
    process->send_signal(SIGTERM);
  }
  const Time deadline = after(kStopLimit);
  for (const auto& [task, process] : processes_) {
    const auto ended = process->wait(deadline);
    if (!ended) {
      ADD_FAILURE() << task << " (pid " << process->pid() << ") did not stop on SIGTERM";
    } else if (!ended->ok()) {
      ADD_FAILURE() << task << " ended with " << ended->to_string() << "\n"
                    << absl::StrJoin(logs(task), "\n");
    }
  }
}

std::vector<std::string> ProcessCluster::reserve(int count) {
  std::vector<std::string> addresses;
  for (int i = 0; i < count; ++i) {
    if (network_ != nullptr) {
      addresses.push_back(network_->add_host() + kPort);
      continue;
    }
    ports_.push_back(value_or_throw(PortReservation::make()));
    addresses.push_back(ports_.back().address());
  }
  return addresses;
}

std::string ProcessCluster::tf_config(const TaskId& task) const {
  return absl::StrCat("{\"cluster\": ", spec_.to_json(), ", \"task\": {\"type\": \"", task.job,
                      "\", \"index\": ", task.index, "}}");
}

void ProcessCluster::start(const TaskId& task) {
  spec_.address(task);  // Throws if there is no such task.
  if (is_running(task)) return;
  const auto keep = [this, task](const std::string& line) {
    MutexLock lock(mutex_);
    logs_[task].push_back(line);
  };
  std::vector<std::string> command = {trireme_binary(), "server"};
  command.insert(command.end(), flags_.begin(), flags_.end());
  if (network_ != nullptr) command = network_->on_host(host(task), std::move(command));
  std::map<std::string, std::string> environment = environment_[task];
  environment["TF_CONFIG"] = tf_config(task);
  processes_[task] = value_or_throw(Subprocess::start({.argv = std::move(command),
                                                       .environment = std::move(environment),
                                                       .on_stdout = keep,
                                                       .on_stderr = keep,
                                                       .null_stdin = true,
                                                       .own_group = true}));
}

void ProcessCluster::kill(const TaskId& task) {
  Subprocess& process = running(task);
  process.send_signal(SIGKILL);
  if (!process.wait(after(kStopLimit))) {
    throw Error(ErrorCode::kInternal, "did not end after SIGKILL", {.task = task.to_string()});
  }
  processes_.erase(task);
}

void ProcessCluster::stop(const TaskId& task) {
  Subprocess& process = running(task);
  process.send_signal(SIGTERM);
  const auto ended = process.wait(after(kStopLimit));
  if (!ended || !ended->ok()) {
    throw Error(ErrorCode::kInternal,
                ended ? absl::StrCat("ended with ", ended->to_string()) : "did not stop on SIGTERM",
                {.task = task.to_string()});
  }
  processes_.erase(task);
}

bool ProcessCluster::is_running(const TaskId& task) {
  const auto found = processes_.find(task);
  return found != processes_.end() && found->second->is_running();
}

// The signal stops all threads only when one of them has received it. On busy cores the others may
// answer calls until then.
void ProcessCluster::freeze(const TaskId& task) {
  Subprocess& process = running(task);
  process.send_signal(SIGSTOP);
  EXPECT_TRUE(wait_until([&] { return is_stopped(process.pid()); }, std::chrono::seconds(20)))
      << task.to_string() << " does not stop";
}

void ProcessCluster::thaw(const TaskId& task) {
  running(task).send_signal(SIGCONT);
}

std::vector<std::string> ProcessCluster::logs(const TaskId& task) {
  MutexLock lock(mutex_);
  return logs_[task];
}

std::string ProcessCluster::host(const TaskId& task) const {
  const std::string address = spec_.address(task);
  return address.substr(0, address.rfind(':'));
}

pid_t ProcessCluster::pid(const TaskId& task) const {
  const auto found = processes_.find(task);
  return found == processes_.end() ? 0 : found->second->pid();
}

Subprocess& ProcessCluster::running(const TaskId& task) const {
  const auto found = processes_.find(task);
  if (found == processes_.end()) {
    throw Error(ErrorCode::kFailedPrecondition, "the task is not running; start it first",
                {.task = task.to_string()});
  }
  return *found->second;
}

}  // namespace trireme
