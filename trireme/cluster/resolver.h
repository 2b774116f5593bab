#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/cluster/cluster_spec.h"
#include "trireme/cluster/environment.h"
#include "trireme/cluster/task_id.h"

namespace trireme {

// A cluster as one of its processes sees it: the tasks, the task of this process, and what it was
// told of the strategy and of certificates.
//
// A process with a cluster but without a task is the chief's program. So is a process that is the
// chief of a cluster whose spec has no chief: its task is left unset, too.
struct Cluster {
  // Describes a local process, without other tasks.
  Cluster() = default;
  // Describes the process of `task`. Throws Error if the spec has no such task. The evaluator need
  // not be in the spec.
  explicit Cluster(ClusterSpec spec, std::optional<TaskId> task = std::nullopt);

  ClusterSpec spec;            // tasks of the cluster and their addresses
  std::optional<TaskId> task;  // task of this process
  // Name of the strategy that was asked for, as with --strategy; empty if it follows from the spec.
  std::string strategy;
  // Folder with the certificates of this process, as with --certs; empty for none. Servers,
  // strategies and end_job() use it unless their own options name another.
  std::string certs;
  // True if this process may listen on addresses that other machines can reach without
  // certificates, as with --insecure.
  bool insecure = false;

  // Returns the name of the strategy with which the cluster trains, as make_strategy() takes it.
  // Unless one was asked for, it is "ps" if the spec has ps tasks, "multi_worker_mirrored" if it
  // has others that train, and "default" without a cluster and for the evaluator.
  std::string strategy_name() const;

  // Returns true if there is neither a cluster nor a task: the program trains on its own.
  bool is_local() const { return spec.empty() && !task; }
  // Returns true if this process only serves others, by running a Server until the job ends: if it
  // is a parameter server, or a worker that the chief's program sends work to. A worker under
  // another strategy than "ps" trains itself.
  bool is_server() const { return is_ps() || (is_worker() && strategy_name() == "ps"); }
  // Returns true if this process is a worker.
  bool is_worker() const { return has_role("worker"); }
  // Returns true if this process is a parameter server.
  bool is_ps() const { return has_role("ps"); }
  // Returns true if this process acts as the chief, which prints and writes files: the chief's
  // task, the chief's program, a local program, and the first worker where workers train themselves
  // and the spec has no chief.
  bool is_chief() const;
  // Returns true if this process is the evaluator.
  bool is_evaluator() const { return has_role("evaluator"); }

 private:
  bool has_role(const char* role) const { return task && task->job == role; }
};

// Finds the cluster that this process belongs to. The resolvers below read their source once, in
// their constructor, which throws Error if the source is not valid. They are immutable, and so safe
// to use from any thread.
class Resolver {
 public:
  virtual ~Resolver() = default;

  // Returns the cluster, and this process's task in it.
  virtual Cluster cluster() const = 0;
  // Returns true if this process only serves others: see Cluster::is_server().
  bool is_server() const { return cluster().is_server(); }

  // Lets a resolver be passed wherever a Cluster is expected.
  operator Cluster() const { return cluster(); }
};

// Returns the cluster that the program gives it:
//
//   tr::SimpleResolver resolver(tr::ClusterSpec{{"worker", {"a:2222"}}, {"ps", {"a:2221"}}});
class SimpleResolver : public Resolver {
 public:
  // Returns `cluster` as it is.
  explicit SimpleResolver(Cluster cluster) : cluster_(std::move(cluster)) {}
  // Makes the cluster of a spec and a task. Throws Error if the spec has no such task.
  explicit SimpleResolver(ClusterSpec spec, std::optional<TaskId> task = std::nullopt)
      : cluster_(std::move(spec), std::move(task)) {}

  // Returns the cluster, and this process's task in it.
  Cluster cluster() const override { return cluster_; }

 private:
  Cluster cluster_;
};

// Reads the variable TF_CONFIG = {"cluster": {...}, "task": {"type": "worker", "index": 1}}, as
// TensorFlow's launchers write it. Without the variable, the process is local.
class TfConfigResolver : public SimpleResolver {
 public:
  // Reads TF_CONFIG from `environment`. Throws Error if it is not valid.
  explicit TfConfigResolver(const Environment& environment = process_environment());
};

// Reads a JSON file that all tasks share: the cluster object, or an object with the key "cluster".
// The task is given by the caller.
class ClusterFileResolver : public SimpleResolver {
 public:
  // Reads the file. Throws Error if it cannot be read, is not valid, or has no such task.
  explicit ClusterFileResolver(const std::string& path, std::optional<TaskId> task = std::nullopt);
};

// Reads the variables of torchrun: MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_WORLD_SIZE.
// Every rank is a worker. The variables name only the first host, so a job on several nodes also
// needs TRIREME_NODES=host0,host1 (docs/decisions/torchrun-addresses.md).
class TorchrunResolver : public SimpleResolver {
 public:
  // Reads the variables from `environment`. Throws Error if one is missing or not valid.
  explicit TorchrunResolver(const Environment& environment = process_environment());
};

// Options of a SlurmResolver.
struct SlurmOptions {
  // Roles in the order of the ranks, as {{"ps", 2}, {"worker", 6}}. If empty, all are workers.
  std::vector<std::pair<std::string, int>> jobs = {};
  // First port of each node. A task listens on it plus its number among the tasks of the node.
  int port_base = 8888;
};

// Reads the variables of a Slurm step: SLURM_PROCID, SLURM_NTASKS, and NODELIST and TASKS_PER_NODE
// of the step, or of the job if the step has none.
class SlurmResolver : public SimpleResolver {
 public:
  // Reads the variables from `environment`. Throws Error if one is missing or not valid.
  explicit SlurmResolver(SlurmOptions options = {},
                         const Environment& environment = process_environment());
};

}  // namespace trireme
