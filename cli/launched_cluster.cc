#include "cli/launched_cluster.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "trireme/base/executor.h"
#include "trireme/base/machine.h"
#include "trireme/base/status.h"
#include "trireme/cluster/text.h"
#include "trireme/runtime/cluster_status.h"

// Each server is a Subprocess whose watcher thread calls on_line() and on_exit(). Before the
// cluster is up, the end of any server is an error: on_exit() requests `one_ended_`, which ends the
// wait, and wait_until_up() finds the server among `members_` and throws with its last lines. Once
// the cluster is up, a server that fails only causes a warning, because the coordinator survives
// lost workers.
//
// With restart_servers(), a thread starts servers that have ended again. A server that ends then is
// only noted by on_exit(); the thread decides when it is due, and replaces its process, so that no
// callback destroys the process that calls it. stop() joins the thread before it looks at the
// processes, so that none is started afterwards.
//
// The callbacks take `mutex_`. So no method holds it while it waits for a process: stop() collects
// the processes under the lock and waits without it.

namespace trireme {
namespace {

constexpr size_t kLastLines = 10;  // Lines of a server that an error shows.
// Time limit for the servers to stop. A server drains for up to ten seconds.
constexpr auto kStopLimit = std::chrono::seconds(15);

// Number of threads of OpenMP, which LibTorch's operators use. Threads of several processes that
// wait for each other keep the cores busy, so more threads than cores make every step many times
// slower.
constexpr char kThreads[] = "OMP_NUM_THREADS";

std::string short_name(const TaskId& task) {
  return absl::StrCat(task.job, "/", task.index);
}

// Returns each task's share of the cores. The program computes only if there are no workers, and
// otherwise mostly waits for them.
int threads_of_task(const ClusterSpec& spec) {
  const int computing = std::max(1, spec.num_tasks("worker")) + spec.num_tasks("ps");
  return std::max(1, usable_cores() / computing);
}

}  // namespace

LaunchedCluster::LaunchedCluster(int workers, int ps) {
  spec_ = ClusterSpec(
      std::map<std::string, TaskAddresses>{{"worker", reserve(workers)}, {"ps", reserve(ps)}});
}

LaunchedCluster::~LaunchedCluster() {
  stop();
}

std::vector<std::string> LaunchedCluster::reserve(int count) {
  std::vector<std::string> addresses;
  for (int i = 0; i < count; ++i) {
    ports_.push_back(value_or_throw(PortReservation::make()));
    addresses.push_back(ports_.back().address());
  }
  return addresses;
}

std::map<std::string, std::string> LaunchedCluster::environment(const TaskId& task) const {
  const nlohmann::json config = {{"cluster", nlohmann::json::parse(spec_.to_json())},
                                 {"task", {{"type", task.job}, {"index", task.index}}}};
  std::map<std::string, std::string> variables = {{"TF_CONFIG", config.dump()}};
  if (!internal::lookup(process_environment(), kThreads)) {
    variables[kThreads] = std::to_string(threads_of_task(spec_));
  }
  return variables;
}

void LaunchedCluster::expect_programs() {
  MutexLock lock(mutex_);
  programs_ = up_ = true;
}

void LaunchedCluster::start(std::function<std::vector<std::string>(const TaskId&)> command_of,
                            const std::optional<TaskId>& except) {
  command_of_ = std::move(command_of);
  for (const TaskId& task : spec_.all_tasks()) {
    if (task == except) continue;
    {
      MutexLock lock(mutex_);
      members_[task].begin = Clock::real().now();
    }
    auto process = value_or_throw(start_task(task));
    MutexLock lock(mutex_);
    members_[task].process = std::move(process);
  }
}

absl::StatusOr<std::unique_ptr<Subprocess>> LaunchedCluster::start_task(const TaskId& task) {
  return Subprocess::start({
      .argv = command_of_(task),
      .environment = environment(task),
      .on_stdout = [=, this](const std::string& line) { on_line(task, STDOUT_FILENO, line); },
      .on_stderr = [=, this](const std::string& line) { on_line(task, STDERR_FILENO, line); },
      .null_stdin = true,
      // Ctrl-C in a terminal must not reach the servers: the program may still need them.
      .own_group = true,
      .on_exit = [=, this](const ExitStatus& status) { on_exit(task, status); },
  });
}

bool LaunchedCluster::wait_until_up(Duration limit, const Credentials& credentials,
                                    std::stop_token stop) {
  std::stop_callback on_stop(stop, [this] { one_ended_.request_stop(); });
  const ClusterStatus status = describe_cluster(spec_, {.deadline = after(limit),
                                                        .wait = true,
                                                        .on_waiting = report_missing_tasks(spec_),
                                                        .stop = one_ended_.get_token(),
                                                        .credentials = credentials});
  if (stop.stop_requested()) return false;
  std::optional<std::pair<TaskId, std::string>> failed;
  {
    MutexLock lock(mutex_);
    for (const auto& [task, member] : members_) {
      if (member.ended) {
        failed.emplace(task, absl::StrCat("ended before it answered: ", member.ended->to_string()));
      }
    }
    up_ = !failed;
  }
  if (failed) fail(failed->first, failed->second);
  for (const auto& [task, answer] : status) {
    if (!answer.ok()) {
      fail(task, absl::StrCat("did not answer within ", format_duration(limit), ": ",
                              std::string(answer.status().message())));
    }
  }
  return true;
}

void LaunchedCluster::fail(const TaskId& task, const std::string& what) {
  std::string lines;
  {
    MutexLock lock(mutex_);
    for (const std::string& line : members_[task].last_lines) {
      absl::StrAppend(&lines, "\n    ", line);
    }
  }
  throw Error(ErrorCode::kUnavailable,
              absl::StrCat(what, lines.empty() ? "; it wrote nothing" : "; its last lines:", lines),
              {.task = task.to_string()});
}

void LaunchedCluster::restart_servers(Duration first_delay) {
  {
    MutexLock lock(mutex_);
    for (auto& [task, member] : members_) {
      const bool done = programs_ && member.ended && member.ended->ok();
      if (!done) member.policy.emplace(first_delay);
    }
  }
  restarter_ = std::thread([this] {
    set_thread_name("trireme-restart");
    restart_ended();
  });
}

void LaunchedCluster::restart_ended() {
  for (;;) {
    std::optional<TaskId> due;
    std::unique_ptr<Subprocess> ended;
    {
      MutexLock lock(mutex_);
      Time next = Time::max();
      for (auto& [task, member] : members_) {
        if (!member.ended || !member.policy) continue;
        if (!member.due) decide(task, member);
        if (!member.due || *member.due > next) continue;
        next = *member.due;
        due = task;
      }
      if (stopping_) return;
      if (next > Clock::real().now()) {
        changed_.wait_until(mutex_, std::min(next, after(RestartPolicy::kLongLife)));
        continue;
      }
      Member& member = members_[*due];
      ended = std::move(member.process);
      member.ended.reset();
      member.due.reset();
      member.begin = Clock::real().now();
    }
    ended.reset();
    auto process = start_task(*due);
    MutexLock lock(mutex_);
    Member& member = members_[*due];
    if (process.ok()) {
      member.process = *std::move(process);
    } else {
      say(absl::StrCat("cannot start ", due->to_string(), ": ", describe(process.status())));
      member.ended = ExitStatus{.code = kRunTimeError};
      member.end = Clock::real().now();
    }
  }
}

void LaunchedCluster::decide(const TaskId& task, Member& member) {
  const auto delay = member.policy->next_delay(*member.ended, member.end - member.begin);
  if (delay) member.due = Clock::real().now() + *delay;
  if (!delay) member.policy.reset();
  say(absl::StrCat("warning: ", task.to_string(), " has ended: ", member.ended->to_string(),
                   delay ? absl::StrCat("; it is started again in ", format_duration(*delay))
                         : absl::StrCat("; it has failed ", RestartPolicy::kMostFailures,
                                        " times in a short time and is not started again")));
}

std::map<TaskId, Subprocess*> LaunchedCluster::processes() {
  std::map<TaskId, Subprocess*> processes;
  MutexLock lock(mutex_);
  for (const auto& [task, member] : members_) {
    if (member.process) processes[task] = member.process.get();
  }
  return processes;
}

void LaunchedCluster::stop_restarting() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (restarter_.joinable()) restarter_.join();
}

void LaunchedCluster::wait_for_end(Time deadline, std::stop_token stop) {
  stop_restarting();
  // The lock makes sure that a waiter that saw no stop is asleep by now.
  const std::stop_callback on_stop(stop, [this] {
    MutexLock lock(mutex_);
    changed_.notify_all();
  });
  MutexLock lock(mutex_);
  while (!stop.stop_requested() && !all_ended() && changed_.wait_until(mutex_, deadline)) {
  }
}

bool LaunchedCluster::all_ended() const {
  return std::ranges::all_of(members_,
                             [](const auto& entry) { return entry.second.ended.has_value(); });
}

void LaunchedCluster::stop() {
  stop_restarting();
  const std::map<TaskId, Subprocess*> all = processes();
  for (const auto& [task, process] : all) process->send_signal(SIGTERM);
  const Time deadline = after(kStopLimit);
  for (const auto& [task, process] : all) {
    if (process->wait(deadline)) continue;
    say(absl::StrCat(task.to_string(), " (pid ", process->pid(), ") did not stop within ",
                     format_duration(kStopLimit), " and is killed"));
    process->send_signal(SIGKILL);
    process->wait(Time::max());
  }
}

void LaunchedCluster::on_line(const TaskId& task, int fd, const std::string& line) {
  // Write each line with one call, so that lines of several servers do not mix.
  const std::string text = absl::StrCat("[", short_name(task), "] ", line, "\n");
  (void)!write(fd, text.data(), text.size());
  MutexLock lock(mutex_);
  std::deque<std::string>& last_lines = members_[task].last_lines;
  last_lines.push_back(line);
  if (last_lines.size() > kLastLines) last_lines.pop_front();
}

void LaunchedCluster::on_exit(const TaskId& task, const ExitStatus& status) {
  bool warn = false, trains = false;
  {
    MutexLock lock(mutex_);
    Member& member = members_[task];
    member.ended = status;
    member.end = Clock::real().now();
    trains = programs_;
    if (trains && status.ok()) member.policy.reset();  // it is done
    // A server that exits with code 0 was told that the job has ended.
    warn = up_ && !stopping_ && !status.ok() && !member.policy;
    changed_.notify_all();
  }
  if (warn) {
    say(absl::StrCat("warning: ", task.to_string(), " has ended early: ", status.to_string(),
                     trains ? "" : "; the other tasks continue without it"));
  }
  one_ended_.request_stop();
}

}  // namespace trireme
