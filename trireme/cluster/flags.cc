#include "trireme/cluster/flags.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/cluster/text.h"
#include "trireme/cluster/tf_config.h"

namespace trireme {
namespace {

using internal::lookup;
using internal::PartialCluster;

PartialCluster partial_cluster_of(std::string source, const Cluster& cluster) {
  PartialCluster found{.source = std::move(source), .spec = cluster.spec};
  if (cluster.task) {
    found.task_type = cluster.task->job;
    found.task_index = cluster.task->index;
  }
  return found;
}

// Returns true if torchrun has started this process. WORLD_SIZE alone is not enough under Slurm:
// job scripts often export it, with MASTER_ADDR, for programs that take their rank from Slurm.
// torchrun also sets RANK.
bool under_torchrun(const Environment& environment) {
  return lookup(environment, "RANK") ||
         (lookup(environment, "WORLD_SIZE") && !lookup(environment, "SLURM_PROCID"));
}

PartialCluster find(const Flags& flags, const Environment& environment) {
  if (flags.cluster_file()) {
    return {.source = flags.names().cluster,
            .spec = internal::read_cluster_file(*flags.cluster_file())};
  }
  if (lookup(environment, "TF_CONFIG")) return internal::read_tf_config(environment);
  if (under_torchrun(environment)) {
    return partial_cluster_of("torchrun", TorchrunResolver(environment));
  }
  if (lookup(environment, "SLURM_PROCID")) {
    return partial_cluster_of("Slurm", SlurmResolver({}, environment));
  }
  return {};
}

}  // namespace

Flags::Flags(int argc, const char* const* argv, FlagNames names) : names_(std::move(names)) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    if (argument == "--") {
      rest_.insert(rest_.end(), argv + i, argv + argc);
      return;
    }
    if (!is_ours(name)) {
      rest_.push_back(argument);
    } else if (equals != argument.npos) {
      set(name, argument.substr(equals + 1));
    } else if (i + 1 < argc && std::string(argv[i + 1]).rfind("--", 0) != 0) {
      set(name, argv[++i]);
    } else {
      set(name, "");
    }
  }
}

bool Flags::is_ours(const std::string& name) const {
  return name == names_.task_type || name == names_.task_index || name == names_.cluster ||
         name == names_.certs || name == names_.strategy;
}

void Flags::set(const std::string& name, const std::string& value) {
  if (value.empty()) internal::refuse(absl::StrCat(name, " needs a value, as ", name, "=VALUE"));
  if (name == names_.task_type) {
    if (!internal::is_role(value)) {
      internal::refuse(
          absl::StrCat(name, "=", value, " is not a valid role; the roles are ", internal::kRoles));
    }
    task_type_ = value;
  } else if (name == names_.task_index) {
    task_index_ = internal::parse_int(value);
    if (!task_index_)
      internal::refuse(absl::StrCat(name, "=", value, " is not a number of 0 or more"));
  } else if (name == names_.certs) {
    certs_ = value;
  } else if (name == names_.strategy) {
    strategy_ = value;
  } else {
    cluster_file_ = value;
  }
}

Cluster resolve(const Flags& flags, const Environment& environment) {
  PartialCluster found = find(flags, environment);
  std::vector<std::string> given;
  if (flags.task_type()) {
    found.task_type = flags.task_type();
    // The index in the environment belonged to another role; these roles have index 0 only.
    if (internal::is_single_role(*flags.task_type())) found.task_index.reset();
    given.push_back(absl::StrCat(flags.names().task_type, "=", *flags.task_type()));
  }
  if (flags.task_index()) {
    found.task_index = flags.task_index();
    given.push_back(absl::StrCat(flags.names().task_index, "=", *flags.task_index()));
  }
  if (!given.empty()) found.source = given.size() == 1 ? given[0] : given[0] + " " + given[1];
  return found.to_cluster();
}

}  // namespace trireme
