#pragma once

#include <deque>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/base/subprocess.h"
#include "trireme/cluster/cluster_spec.h"
#include "trireme/rpc/credentials.h"
#include "trireme/rpc/port_reservation.h"

namespace trireme {

// The servers of a cluster on this machine, as child processes on ports that are held for them.
// What they write is written here with the task before each line. Thread-safe.
class LaunchedCluster {
 public:
  LaunchedCluster(int workers, int ps);
  ~LaunchedCluster();  // stops them

  const ClusterSpec& spec() const { return spec_; }
  // What the process of a task is told of its cluster.
  std::string tf_config(const TaskId& task) const;

  // Runs the command once for each task.
  void start(const std::vector<std::string>& command);
  // Returns when every task answers. Throws Error, naming the task and with its last lines, if one
  // ends before or does not answer in time; returns false if stop is requested meanwhile.
  bool wait_until_up(Duration limit, const Credentials& credentials, std::stop_token stop);
  // SIGTERM, then a bounded wait, then SIGKILL.
  void stop();

 private:
  struct Member {
    std::unique_ptr<Subprocess> process;
    std::deque<std::string> last_lines;
    std::optional<ExitStatus> ended;
  };

  std::vector<std::string> reserve(int count);
  void on_line(const TaskId& task, int fd, const std::string& line);
  void on_exit(const TaskId& task, const ExitStatus& status);
  [[noreturn]] void fail(const TaskId& task, const std::string& what);

  std::vector<PortReservation> ports_;
  ClusterSpec spec_;
  std::stop_source one_ended_;

  Mutex mutex_;
  std::map<TaskId, Member> members_ ABSL_GUARDED_BY(mutex_);
  bool up_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace trireme
