#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trireme/cluster/task_id.h"

namespace trireme {

// Addresses of the tasks of one job: a list, whose tasks are numbered from 0, or a map from index
// to address, which may have gaps.
//
//   TaskAddresses{"a:2222", "b:2222"}             tasks 0 and 1
//   TaskAddresses{{0, "a:2222"}, {3, "b:2222"}}   tasks 0 and 3
class TaskAddresses {
 public:
  // Makes a job without tasks.
  TaskAddresses() = default;
  // Numbers the addresses from 0: {"a:2222", "b:2222"}.
  TaskAddresses(std::initializer_list<std::string> addresses);
  // Does the same for a vector.
  TaskAddresses(const std::vector<std::string>& addresses);
  // Takes pairs of an index and an address: {{0, "a:2222"}, {3, "b:2222"}}.
  TaskAddresses(std::initializer_list<std::pair<int, std::string>> sparse);
  // Does the same for a map.
  TaskAddresses(const std::map<int, std::string>& sparse);

  // Returns (index, address) of each task.
  const std::vector<std::pair<int, std::string>>& tasks() const { return tasks_; }

 private:
  std::vector<std::pair<int, std::string>> tasks_;
};

// Lists the tasks of a cluster and their addresses:
//
//   ClusterSpec spec{{"worker", {"a:2222", "b:2222"}}, {"ps", {"a:2221"}}};
//
// The jobs are the roles worker, chief, ps and evaluator, with at most one chief and one evaluator.
// A spec is always valid: the constructors and from_json throw Error, which names the job, the task
// and the value at fault. A job without tasks is left out. A task with port 0 gets a port that its
// server picks, in a spec that one process serves: tr::Server for one task, tr::InProcessCluster
// for several. Copyable; safe to read from any thread.
class ClusterSpec {
 public:
  // Makes a spec without jobs.
  ClusterSpec() = default;
  // Takes pairs of a job and the addresses of its tasks, as in the example above.
  ClusterSpec(std::initializer_list<std::pair<std::string, TaskAddresses>> jobs);
  // Does the same for a map.
  explicit ClusterSpec(const std::map<std::string, TaskAddresses>& jobs);

  // Reads the object under "cluster" in TF_CONFIG:
  // {"worker": ["a:2222"], "ps": {"3": "b:2222"}}.
  static ClusterSpec from_json(const std::string& text);
  // Returns the spec in the form that from_json() reads.
  std::string to_json() const;

  // Returns true if there are no jobs.
  bool empty() const { return jobs_.empty(); }
  // Returns true if the job has a task.
  bool has_job(const std::string& job) const { return jobs_.contains(job); }
  // Returns true if the task is part of the cluster.
  bool has_task(const TaskId& task) const;

  // Returns the names of the jobs, sorted, however the spec was written, so that the order is the
  // same in every process.
  std::vector<std::string> jobs() const;
  // Returns the tasks of a job, sorted by index; an empty list if there is no such job.
  std::vector<TaskId> tasks(const std::string& job) const;
  // Returns all tasks, sorted by job name and then by index.
  std::vector<TaskId> all_tasks() const;
  // Returns the number of tasks of a job; 0 if there is no such job.
  int num_tasks(const std::string& job) const;

  // Returns the address of a task. Throws Error if there is no such task: kNotFound for the job,
  // kOutOfRange for the index.
  const std::string& address(const TaskId& task) const;

  // Returns true if a process serves the task at its address, so that the cluster is whole only if
  // it answers. That is so for workers and ps tasks. It is so for the chief of a cluster without ps
  // tasks, which trains as the workers do; next to ps tasks, the chief's program only uses the
  // servers. It is not so for the evaluator.
  bool serves(const TaskId& task) const;

  // Throws Error, which names the task, if a port is 0: only the server that picks it knows it.
  void check_ports() const;

  // Returns the tasks that train. The evaluator is not one of them: no task waits for it, and
  // nothing is placed on it.
  ClusterSpec without_evaluator() const;

  // Compares jobs, tasks and addresses.
  bool operator==(const ClusterSpec&) const = default;

 private:
  void add(const std::string& job, const TaskAddresses& addresses);
  // Throws Error if the spec as a whole is not valid.
  void check() const;

  std::map<std::string, std::map<int, std::string>> jobs_;
};

}  // namespace trireme
