#pragma once

#include <string>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/cluster/cluster_spec.h"
#include "trireme/rpc/credentials.h"
#include "trireme/runtime/server_service.h"

namespace trireme {

struct TestClusterOptions {
  int workers = 3;
  int ps = 2;
  bool start = true;  // True to start every task and wait until all of them answer.
};

// A cluster for tests that kill, stop and freeze its tasks, one at a time. Methods throw Error if
// something fails, which fails the test. The destructor fails the test if a task has ended by
// itself or does not stop. Every call is bounded in time. Not thread-safe.
class TestCluster {
 public:
  virtual ~TestCluster() = default;

  virtual const ClusterSpec& spec() const = 0;
  // Returns the spec with all parameter servers but only these workers.
  ClusterSpec spec_with_workers(const std::vector<int>& workers) const;
  // Returns "grpc://127.0.0.1:PORT", the target for a Session.
  std::string target(const TaskId& task) const;

  // Starts the task if it does not run. Does not wait for it to answer.
  virtual void start(const TaskId& task) = 0;
  // Ends the task at once; a process gets SIGKILL.
  virtual void kill(const TaskId& task) = 0;
  // Asks the task to end, as SIGTERM does, and waits until it has.
  virtual void stop(const TaskId& task) = 0;
  virtual bool is_running(const TaskId& task) = 0;
  // Kills the task if it runs, starts it and waits until it answers.
  void restart(const TaskId& task);

  // A frozen task keeps its connections open but answers nothing. Tasks in the test's own process
  // cannot be frozen: can_freeze() is then false, and freeze() and thaw() throw.
  virtual bool can_freeze() const = 0;
  virtual void freeze(const TaskId& task) = 0;
  virtual void thaw(const TaskId& task) = 0;

  // Returns the credentials with which the test calls the tasks.
  virtual Credentials credentials() const { return Credentials::insecure(); }

  // Returns the lines that the task has written since the cluster was created, across restarts.
  virtual std::vector<std::string> logs(const TaskId& task) = 0;

  // Waits until all tasks, or one task, answer. Throws Error at the deadline; for all tasks it
  // names the ones that do not answer and what they wrote.
  void wait_until_up(Time deadline = after(std::chrono::seconds(30)));
  void wait_until_up(const TaskId& task, Time deadline = after(std::chrono::seconds(30)));
  // Waits until no task holds a step of a session. Throws Error at the deadline, naming a task that
  // does.
  void wait_until_no_steps(Time deadline = after(std::chrono::seconds(10)));
  // Returns the task's description of itself. Throws Error if the task does not answer.
  TaskDescription describe(const TaskId& task);
};

}  // namespace trireme
