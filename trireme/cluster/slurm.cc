#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/cluster/address.h"
#include "trireme/cluster/resolver.h"
#include "trireme/cluster/slurm_nodelist.h"
#include "trireme/cluster/text.h"

// Derives the address of every task from the variables that srun sets in each of them. Slurm does
// not tell a task where the others run; but by default it fills node after node, so that the list
// of nodes and the number of tasks on each determine the node of every rank. All tasks compute the
// same spec. Each checks its own place against SLURM_NODEID and SLURM_LOCALID, so that another
// distribution is an error instead of a wrong address.
namespace trireme {
namespace {

using internal::count;
using internal::refuse;

// Place of a rank.
struct NodeSlot {
  int node = 0;   // index of the node
  int local = 0;  // number among the tasks of the node
};

struct Variable {
  std::string name;
  std::string value;
};

// Returns the step's variable if it is set, otherwise the job's. A step may have fewer nodes than
// its job.
Variable step_or_job_variable(const Environment& environment, const std::string& step,
                              const std::string& job) {
  if (const auto value = internal::lookup(environment, step)) return {step, *value};
  return {job, internal::required(environment, job,
                                  absl::StrCat("nor is ", step, "; run the program with srun"))};
}

// Returns the slot of each rank. Slurm fills node after node, unless --distribution says otherwise.
std::vector<NodeSlot> assign_slots(const Variable& per_node, int tasks, size_t nodes) {
  const std::vector<int> counts =
      internal::in_context(absl::StrCat(per_node.name, "='", per_node.value, "'"),
                           [&] { return internal::expand_tasks_per_node(per_node.value); });
  if (counts.size() != nodes) {
    refuse(absl::StrCat(per_node.name, "='", per_node.value, "' is for ",
                        count(static_cast<int>(counts.size()), "node"), ", but the node list has ",
                        nodes));
  }
  int64_t sum = 0;
  for (const int on_node : counts) sum += on_node;
  if (sum != tasks) {
    refuse(absl::StrCat(per_node.name, "='", per_node.value, "' adds up to ", sum,
                        " tasks, but SLURM_NTASKS=", tasks));
  }
  std::vector<NodeSlot> result;
  for (size_t node = 0; node < counts.size(); ++node) {
    for (int local = 0; local < counts[node]; ++local) {
      result.push_back({static_cast<int>(node), local});
    }
  }
  return result;
}

// Compares the slot of this rank with the one that Slurm tells it. If they differ, the addresses of
// all tasks would be wrong.
void check_slot(const Environment& environment, int rank, const NodeSlot& slot) {
  const auto check = [&](const std::string& name, int ours) {
    const std::optional<std::string> theirs = internal::lookup(environment, name);
    if (!theirs || internal::parse_int(*theirs) == ours) return;
    refuse(absl::StrCat(name, "='", *theirs, "', but rank ", rank, " would have ", ours,
                        " if Slurm filled node after node; run srun with --distribution=block"));
  };
  check("SLURM_NODEID", slot.node);
  check("SLURM_LOCALID", slot.local);
}

// Returns the task of each rank.
std::vector<TaskId> roles(const SlurmOptions& options, int tasks) {
  std::vector<TaskId> ids;
  std::vector<std::string> wants;
  int64_t sum = 0;
  std::vector<std::pair<std::string, int>> jobs = options.jobs;
  if (jobs.empty()) jobs = {{"worker", tasks}};
  for (const auto& [job, number] : jobs) {
    if (!internal::is_role(job)) {
      refuse(absl::StrCat("option jobs: '", job, "' is not a valid role; the roles are ",
                          internal::kRoles));
    }
    if (number < 0) refuse(absl::StrCat("option jobs: job '", job, "' has ", number, " tasks"));
    sum += number;
    wants.push_back(absl::StrCat(number, " ", job));
  }
  if (sum != tasks) {
    refuse(absl::StrCat("option jobs: ", absl::StrJoin(wants, " and "), " add up to ", sum,
                        " tasks, but SLURM_NTASKS=", tasks));
  }
  std::map<std::string, int> next;  // a job may be named in several places
  for (const auto& [job, number] : jobs) {
    for (int i = 0; i < number; ++i) ids.push_back({job, next[job]++});
  }
  return ids;
}

Cluster read(const SlurmOptions& options, const Environment& environment) {
  const std::string srun = "srun sets it";
  const int tasks =
      internal::required_int(environment, "SLURM_NTASKS", 1, internal::kMaxTasks, srun);
  const int rank = internal::required_int(environment, "SLURM_PROCID", 0, tasks - 1, srun);
  const Variable list =
      step_or_job_variable(environment, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
  const Variable per_node =
      step_or_job_variable(environment, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");

  const std::string nodes = absl::StrCat(list.name, "='", list.value, "'");
  const std::vector<std::string> hosts =
      internal::in_context(nodes, [&] { return internal::expand_nodelist(list.value); });
  const std::vector<NodeSlot> slot = assign_slots(per_node, tasks, hosts.size());
  check_slot(environment, rank, slot[rank]);
  const std::vector<TaskId> role = roles(options, tasks);

  std::map<std::string, std::vector<std::string>> addresses;
  for (int r = 0; r < tasks; ++r) {
    const int64_t port = int64_t{options.port_base} + slot[r].local;
    if (port < 1 || port > internal::kMaxPort) {
      refuse(absl::StrCat("option port_base: ", options.port_base, " plus ", slot[r].local,
                          " is not a valid port; it must be from 1 to ", internal::kMaxPort));
    }
    addresses[role[r].job].push_back(
        internal::Address{hosts[slot[r].node], static_cast<int>(port)}.to_string());
  }
  return internal::in_context(nodes, [&] {
    return Cluster(ClusterSpec({addresses.begin(), addresses.end()}), role[rank]);
  });
}

}  // namespace

SlurmResolver::SlurmResolver(SlurmOptions options, const Environment& environment)
    : SimpleResolver(internal::in_context("Slurm", [&] { return read(options, environment); })) {}

}  // namespace trireme
