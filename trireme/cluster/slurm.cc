#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/cluster/address.h"
#include "trireme/cluster/resolver.h"
#include "trireme/cluster/slurm_nodelist.h"
#include "trireme/cluster/text.h"

namespace trireme {
namespace {

using internal::count;
using internal::refuse;

// Where a rank runs.
struct Seat {
  int node = 0;
  int local = 0;  // among the tasks of the node
};

struct Variable {
  std::string name;
  std::string value;
};

// The step's variable if there is one: a step may have fewer nodes than its job.
Variable of_step_or_job(const Environment& environment, const std::string& step,
                        const std::string& job) {
  if (const auto value = internal::lookup(environment, step)) return {step, *value};
  return {job, internal::required(environment, job,
                                  absl::StrCat("nor is ", step, "; run the program with srun"))};
}

// Slurm fills node after node, unless told otherwise with --distribution.
std::vector<Seat> seats(const Variable& per_node, int tasks, size_t nodes) {
  const std::vector<int> counts =
      internal::in_context(absl::StrCat(per_node.name, "='", per_node.value, "'"),
                           [&] { return internal::expand_tasks_per_node(per_node.value); });
  if (counts.size() != nodes) {
    refuse(absl::StrCat(per_node.name, "='", per_node.value, "' is of ",
                        count(static_cast<int>(counts.size()), "node"), ", the node list of ",
                        nodes));
  }
  int64_t sum = 0;
  for (const int on_node : counts) sum += on_node;
  if (sum != tasks) {
    refuse(absl::StrCat(per_node.name, "='", per_node.value, "' makes ", sum,
                        " tasks, and SLURM_NTASKS=", tasks));
  }
  std::vector<Seat> result;
  for (size_t node = 0; node < counts.size(); ++node) {
    for (int local = 0; local < counts[node]; ++local) {
      result.push_back({static_cast<int>(node), local});
    }
  }
  return result;
}

// Slurm tells each task its own seat. If that is another than ours, all addresses are wrong.
void check_seat(const Environment& environment, int rank, const Seat& seat) {
  const auto check = [&](const std::string& name, int ours) {
    const std::optional<std::string> theirs = internal::lookup(environment, name);
    if (!theirs || internal::parse_int(*theirs) == ours) return;
    refuse(absl::StrCat(name, "='", *theirs, "', but rank ", rank, " would have ", ours,
                        " if node after node were filled; run srun with --distribution=block"));
  };
  check("SLURM_NODEID", seat.node);
  check("SLURM_LOCALID", seat.local);
}

// The role of each rank.
std::vector<TaskId> roles(const SlurmOptions& options, int tasks) {
  std::vector<TaskId> ids;
  std::vector<std::string> wants;
  int64_t sum = 0;
  std::vector<std::pair<std::string, int>> jobs = options.jobs;
  if (jobs.empty()) jobs = {{"worker", tasks}};
  for (const auto& [job, number] : jobs) {
    if (!internal::is_role(job)) {
      refuse(absl::StrCat("option jobs: '", job, "' is no role; the roles are ", internal::kRoles));
    }
    if (number < 0) refuse(absl::StrCat("option jobs: job '", job, "' has ", number, " tasks"));
    sum += number;
    wants.push_back(absl::StrCat(number, " ", job));
  }
  if (sum != tasks) {
    refuse(absl::StrCat("option jobs: ", absl::StrJoin(wants, " and "), " make ", sum,
                        " tasks, and SLURM_NTASKS=", tasks));
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
  const Variable list = of_step_or_job(environment, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
  const Variable per_node =
      of_step_or_job(environment, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");

  const std::string nodes = absl::StrCat(list.name, "='", list.value, "'");
  const std::vector<std::string> hosts =
      internal::in_context(nodes, [&] { return internal::expand_nodelist(list.value); });
  const std::vector<Seat> seat = seats(per_node, tasks, hosts.size());
  check_seat(environment, rank, seat[rank]);
  const std::vector<TaskId> role = roles(options, tasks);

  std::map<std::string, std::vector<std::string>> addresses;
  for (int r = 0; r < tasks; ++r) {
    const int64_t port = int64_t{options.port_base} + seat[r].local;
    if (port < 1 || port > internal::kMaxPort) {
      refuse(absl::StrCat("option port_base: ", options.port_base, " plus ", seat[r].local,
                          " is no port; it must be from 1 to ", internal::kMaxPort));
    }
    addresses[role[r].job].push_back(
        internal::Address{hosts[seat[r].node], static_cast<int>(port)}.to_string());
  }
  return internal::in_context(nodes, [&] {
    return Cluster(ClusterSpec({addresses.begin(), addresses.end()}), role[rank]);
  });
}

}  // namespace

SlurmResolver::SlurmResolver(SlurmOptions options, const Environment& environment)
    : SimpleResolver(internal::in_context("Slurm", [&] { return read(options, environment); })) {}

}  // namespace trireme
