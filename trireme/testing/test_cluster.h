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
  bool start = true;  // every task, and wait until they answer
};

// A cluster that a test may hurt, one task at a time. What fails throws Error, which fails the
// test; a task that ended by itself, or that does not stop, is a failure when the cluster is
// destroyed. Every call is bounded. Used from one thread.
class TestCluster {
 public:
  virtual ~TestCluster() = default;

  virtual const ClusterSpec& spec() const = 0;
  // The same with these workers only.
  ClusterSpec spec_with_workers(const std::vector<int>& workers) const;
  // "grpc://127.0.0.1:PORT"
  std::string target(const TaskId& task) const;

  // Starts it if it does not run; does not wait for it to answer.
  virtual void start(const TaskId& task) = 0;
  // Ends it at once, without a word to anybody: kill -9 if it is a process.
  virtual void kill(const TaskId& task) = 0;
  // Asks it to end, as SIGTERM does, and waits until it has.
  virtual void stop(const TaskId& task) = 0;
  virtual bool is_running(const TaskId& task) = 0;
  // Kills it if it runs, starts it and waits until it answers.
  void restart(const TaskId& task);

  // A frozen task keeps its connections and answers nothing. Threads of one process cannot be
  // stopped, so not every cluster can; freeze and thaw throw then.
  virtual bool can_freeze() const = 0;
  virtual void freeze(const TaskId& task) = 0;
  virtual void thaw(const TaskId& task) = 0;

  // What the test calls the tasks with.
  virtual Credentials credentials() const { return Credentials::insecure(); }

  // What it has written, of all its lives.
  virtual std::vector<std::string> logs(const TaskId& task) = 0;

  // Throws Error, naming those who do not answer in time and what they wrote.
  void wait_until_up(Time deadline = after(std::chrono::seconds(30)));
  void wait_until_up(const TaskId& task, Time deadline = after(std::chrono::seconds(30)));
  // Until no task keeps anything of a session's step. Throws Error, naming who does.
  void wait_until_no_steps(Time deadline = after(std::chrono::seconds(10)));
  // What the task says of itself. Throws Error if it does not answer.
  TaskDescription describe(const TaskId& task);
};

}  // namespace trireme
