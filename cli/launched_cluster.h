#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "cli/restart_policy.h"
#include "trireme/base/mutex.h"
#include "trireme/base/subprocess.h"
#include "trireme/cluster/cluster_spec.h"
#include "trireme/rpc/credentials.h"
#include "trireme/rpc/port_reservation.h"

namespace trireme {

// Runs the servers of a cluster on this machine, as child processes on reserved ports. Copies each
// line of their output to the output of this process, prefixed with the task. Thread-safe.
class LaunchedCluster {
 public:
  // Reserves the ports. Starts nothing yet.
  LaunchedCluster(int workers, int ps);
  // Stops the servers.
  ~LaunchedCluster();

  const ClusterSpec& spec() const { return spec_; }
  // Returns the variables for the process of a task: its TF_CONFIG, and its share of the cores as
  // OMP_NUM_THREADS, unless this process has that variable.
  std::map<std::string, std::string> environment(const TaskId& task) const;

  // Runs the command of each task, or of each but one, which the caller runs itself.
  // `command_of` is also called for restarts, on another thread.
  void start(std::function<std::vector<std::string>(const TaskId&)> command_of,
             const std::optional<TaskId>& except = {});
  // Waits until every task answers. Throws Error, with the task and its last lines, if one ends
  // before that or does not answer in time. Returns false if `stop` is requested first.
  bool wait_until_up(Duration limit, const Credentials& credentials, std::stop_token stop);
  // Starts servers that end from now on again, until stop(): see RestartPolicy. Must be called at
  // most once, when all tasks are up.
  void restart_servers(Duration first_delay);
  // Regards the tasks as programs that train: wait_until_up() is not needed, and one that exits
  // with code 0 is not started again. Must be called before start().
  void expect_programs();
  // Starts no task again, and blocks until all of them have ended, at most until the deadline or
  // until `stop` is requested.
  void wait_for_end(Time deadline, std::stop_token stop);
  // Sends SIGTERM to the servers and waits for them; kills those that do not stop in time.
  void stop();

 private:
  struct Member {
    std::unique_ptr<Subprocess> process;
    std::deque<std::string> last_lines;
    std::optional<ExitStatus> ended;
    Time begin = {};  // Time of the last start, and of the end of that process.
    Time end = {};
    std::optional<RestartPolicy> policy;  // nullopt if it is not started again.
    std::optional<Time> due;              // Time of the next start, once it is decided.
  };

  std::vector<std::string> reserve(int count);
  // Returns the processes of all tasks. Valid once none is started again.
  std::map<TaskId, Subprocess*> processes();
  void stop_restarting();
  bool all_ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs the command as a task, whose member must exist.
  absl::StatusOr<std::unique_ptr<Subprocess>> start_task(const TaskId& task);
  // Starts servers again when they are due. Runs on `restarter_`.
  void restart_ended();
  // Decides when a server that has ended is started again.
  void decide(const TaskId& task, Member& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void on_line(const TaskId& task, int fd, const std::string& line);
  void on_exit(const TaskId& task, const ExitStatus& status);
  [[noreturn]] void fail(const TaskId& task, const std::string& what);

  std::vector<PortReservation> ports_;
  ClusterSpec spec_;
  std::function<std::vector<std::string>(const TaskId&)> command_of_;
  std::stop_source one_ended_;  // Requested when a server ends, or when wait_until_up() must end.

  Mutex mutex_;
  std::map<TaskId, Member> members_ ABSL_GUARDED_BY(mutex_);
  bool up_ ABSL_GUARDED_BY(mutex_) = false;  // True once all servers have answered.
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool programs_ ABSL_GUARDED_BY(mutex_) = false;  // True if the tasks end by themselves.
  CondVar changed_;                                // Notified when a server ends, and by a stop.

  std::thread restarter_;
};

}  // namespace trireme
