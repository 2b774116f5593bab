#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trireme/cluster/task_id.h"

namespace trireme {

// The addresses of one job's tasks: a list, numbered from 0, or index → address with gaps.
class TaskAddresses {
 public:
  TaskAddresses() = default;
  TaskAddresses(std::initializer_list<std::string> addresses);
  TaskAddresses(const std::vector<std::string>& addresses);
  TaskAddresses(std::initializer_list<std::pair<int, std::string>> sparse);
  TaskAddresses(const std::map<int, std::string>& sparse);

  const std::vector<std::pair<int, std::string>>& tasks() const { return tasks_; }

 private:
  std::vector<std::pair<int, std::string>> tasks_;
};

// Which tasks there are and where each listens:
//
//   ClusterSpec spec{{"worker", {"a:2222", "b:2222"}}, {"ps", {"a:2221"}}};
//
// The jobs are the roles worker, chief, ps and evaluator, with one chief and one evaluator at most.
// A spec that exists is a valid one: the constructors and from_json throw Error, which names the
// job, the task and the value at fault. A job without tasks is as if it were not there.
class ClusterSpec {
 public:
  ClusterSpec() = default;
  ClusterSpec(std::initializer_list<std::pair<std::string, TaskAddresses>> jobs);
  explicit ClusterSpec(const std::map<std::string, TaskAddresses>& jobs);

  // The object under "cluster" in TF_CONFIG: {"worker": ["a:2222"], "ps": {"3": "b:2222"}}.
  static ClusterSpec from_json(const std::string& text);
  std::string to_json() const;

  bool empty() const { return jobs_.empty(); }
  bool has_job(const std::string& job) const { return jobs_.contains(job); }
  bool has_task(const TaskId& task) const;

  // By job name, then by index, however the spec was written: the same in every process.
  std::vector<std::string> jobs() const;
  std::vector<TaskId> tasks(const std::string& job) const;  // none if there is no such job
  std::vector<TaskId> all_tasks() const;
  int num_tasks(const std::string& job) const;

  // Throws Error (kNotFound for the job, kOutOfRange for the index) if there is no such task.
  const std::string& address(const TaskId& task) const;

  // The cluster that trains. The evaluator stands outside it: nobody waits for it, and nothing is
  // placed on it.
  ClusterSpec without_evaluator() const;

  bool operator==(const ClusterSpec&) const = default;

 private:
  void add(const std::string& job, const TaskAddresses& addresses);
  void check() const;

  std::map<std::string, std::map<int, std::string>> jobs_;
};

}  // namespace trireme
