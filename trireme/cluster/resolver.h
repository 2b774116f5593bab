#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/cluster/cluster_spec.h"
#include "trireme/cluster/environment.h"
#include "trireme/cluster/task_id.h"

namespace trireme {

// What a process knows of its cluster: who is in it, and who it is itself.
//
// A process with a cluster but no task is the chief's program: nobody else's list names it. So is
// one that says it is the chief of a cluster without a chief entry; its task is left unset too.
// What that program then is (worker 0, or /job:chief/task:0 on a free port) its strategy decides.
struct Cluster {
  Cluster() = default;  // local: one task, nobody else
  // Throws Error if the spec has no such task. The evaluator need not be in it.
  explicit Cluster(ClusterSpec spec, std::optional<TaskId> task = std::nullopt);

  ClusterSpec spec;
  std::optional<TaskId> task;

  // Neither a cluster nor a role: a program that trains on its own.
  bool is_local() const { return spec.empty() && !task; }
  // Whether this process only serves others, by running a Server until the job ends.
  bool is_server() const { return is_worker() || is_ps(); }
  bool is_worker() const { return has_role("worker"); }
  bool is_ps() const { return has_role("ps"); }
  bool is_chief() const { return has_role("chief"); }
  bool is_evaluator() const { return has_role("evaluator"); }

 private:
  bool has_role(const char* role) const { return task && task->job == role; }
};

// Finds out about the cluster. The resolvers below read their sources once, when they are made, and
// throw Error then; they are immutable, so any thread may ask them.
class Resolver {
 public:
  virtual ~Resolver() = default;

  virtual Cluster cluster() const = 0;
  bool is_server() const { return cluster().is_server(); }

  // Whatever takes a Cluster takes a resolver.
  operator Cluster() const { return cluster(); }
};

// The cluster that the program gives.
class SimpleResolver : public Resolver {
 public:
  explicit SimpleResolver(Cluster cluster) : cluster_(std::move(cluster)) {}
  explicit SimpleResolver(ClusterSpec spec, std::optional<TaskId> task = std::nullopt)
      : cluster_(std::move(spec), std::move(task)) {}

  Cluster cluster() const override { return cluster_; }

 private:
  Cluster cluster_;
};

// TF_CONFIG = {"cluster": {...}, "task": {"type": "worker", "index": 1}}, as TensorFlow's launchers
// write it. Without it, a local task.
class TfConfigResolver : public SimpleResolver {
 public:
  explicit TfConfigResolver(const Environment& environment = process_environment());
};

// A JSON file that all tasks share: the cluster object, or an object that has it as "cluster".
class ClusterFileResolver : public SimpleResolver {
 public:
  explicit ClusterFileResolver(const std::string& path, std::optional<TaskId> task = std::nullopt);
};

// The variables of torchrun: MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_WORLD_SIZE. Every
// rank is a worker. Those variables name no host but the first, so a job on several nodes needs
// TRIREME_NODES=host0,host1 as well (docs/decisions/torchrun-addresses.md).
class TorchrunResolver : public SimpleResolver {
 public:
  explicit TorchrunResolver(const Environment& environment = process_environment());
};

struct SlurmOptions {
  // The roles in the order of the ranks, as {{"ps", 2}, {"worker", 6}}; none: all are workers.
  std::vector<std::pair<std::string, int>> jobs = {};
  // A task listens on this port plus its number among the tasks of its node.
  int port_base = 8888;
};

// The variables of a Slurm step: SLURM_PROCID, SLURM_NTASKS, and the step's (or else the job's)
// NODELIST and TASKS_PER_NODE.
class SlurmResolver : public SimpleResolver {
 public:
  explicit SlurmResolver(SlurmOptions options = {},
                         const Environment& environment = process_environment());
};

}  // namespace trireme
