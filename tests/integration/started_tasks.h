#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/integration/commands.h"
#include "trireme/cluster/cluster_spec.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/rpc/temporary_folder.h"

// Starts a program once for each task of a cluster, as a script on several machines does.
namespace trireme {

// The way in which a process is told the cluster and its task.
enum class Told { kTfConfig, kFlags };

// The processes of one job. The ports of its tasks are reserved while it lives.
class StartedTasks {
 public:
  StartedTasks(int workers, int ps, bool chief) {
    const std::map<std::string, int> counts = {
        {"chief", chief ? 1 : 0}, {"ps", ps}, {"worker", workers}};
    std::map<std::string, TaskAddresses> jobs;
    for (const auto& [job, count] : counts) {
      std::vector<std::string> addresses;
      for (int i = 0; i < count; ++i) {
        ports_.push_back(value_or_throw(PortReservation::make()));
        addresses.push_back(ports_.back().address());
      }
      jobs.emplace(job, addresses);
    }
    spec_ = ClusterSpec(jobs);
    folder_.write("cluster.json", spec_.to_json());
  }

  const ClusterSpec& spec() const { return spec_; }
  const TemporaryFolder& folder() const { return folder_; }

  // Starts `command` as a task, in the folder of the job.
  RunningCommand& start(std::vector<std::string> command, const TaskId& task, Told told) {
    std::string tf_config;
    if (told == Told::kTfConfig) {
      tf_config = nlohmann::json{{"cluster", nlohmann::json::parse(spec_.to_json())},
                                 {"task", {{"type", task.job}, {"index", task.index}}}}
                      .dump();
    } else {
      command.insert(command.end(), {"--cluster", folder_.path() + "/cluster.json", "--task_type",
                                     task.job, "--task_index", std::to_string(task.index)});
    }
    return run(std::move(command), task, tf_config);
  }

  // Starts `command` without a cluster. `task` is only its name here.
  RunningCommand& start_alone(std::vector<std::string> command, const TaskId& task) {
    return run(std::move(command), task, "");
  }

  // Waits until all processes that were started serve. A chief that is started earlier may end the
  // job before it knows of a slow one, which then waits for the next job.
  void wait_until_serving() {
    for (const auto& [task, process] : processes_) process->wait_for(" serves at ");
  }

  RunningCommand& operator[](const TaskId& task) { return *processes_.at(task); }
  std::map<TaskId, std::unique_ptr<RunningCommand>>& all() { return processes_; }

 private:
  RunningCommand& run(std::vector<std::string> command, const TaskId& task,
                      const std::string& tf_config) {
    auto& process = processes_[task];
    process = std::make_unique<RunningCommand>(
        SubprocessOptions{.argv = std::move(command),
                          .environment = {{"OMP_NUM_THREADS", "1"}, {"TF_CONFIG", tf_config}},
                          .directory = folder_.path(),
                          .null_stdin = true,
                          .own_group = true});
    return *process;
  }

  std::vector<PortReservation> ports_;
  ClusterSpec spec_;
  const TemporaryFolder folder_;
  std::map<TaskId, std::unique_ptr<RunningCommand>> processes_;
};

}  // namespace trireme
