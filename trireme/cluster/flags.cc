#include "trireme/cluster/flags.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trireme/cluster/strategy_tasks.h"
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

// Largest number of differing letters of two flags of which one is probably a mistyped other.
constexpr size_t kResembling = 2;

// Returns the smallest number of letters to insert, delete or replace that turns one text into the
// other.
size_t edit_distance(const std::string& from, const std::string& to) {
  std::vector<size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= from.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= to.size(); ++j) {
      const size_t replaced = diagonal + (from[i - 1] == to[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({replaced, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

}  // namespace

Flags::Flags(int argc, const char* const* argv, FlagNames names) : names_(std::move(names)) {
  read(argc, argv);
}

Flags::Flags(int argc, const char* const* argv, Usage usage, FlagNames names)
    : names_(std::move(names)), usage_(std::move(usage)) {
  read(argc, argv);
}

std::vector<FlagUsage> Flags::all() const {
  std::vector<FlagUsage> flags = {
      {names_.task_type, "ROLE", "role of this process: worker, chief, ps or evaluator"},
      {names_.task_index, "N", "number of this process among the tasks of its role"},
      {names_.cluster, "FILE", "cluster spec, as JSON; default: TF_CONFIG, torchrun or Slurm"},
      {names_.certs, "FOLDER", "certificates of this process"},
      {names_.insecure, "", "listen on addresses of other machines without certificates"},
      {names_.strategy, "NAME",
       "ps, multi_worker_mirrored, mirrored, central_storage or default; default: by the cluster"}};
  if (usage_) flags.insert(flags.end(), usage_->flags.begin(), usage_->flags.end());
  return flags;
}

void Flags::read(int argc, const char* const* argv) {
  if (argc > 0) program_ = std::filesystem::path(argv[0]).filename();
  const std::vector<FlagUsage> known = all();
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    if (argument == "--") {
      rest_.insert(rest_.end(), argv + i, argv + argc);
      return;
    }
    if (usage_ && (argument == "--help" || argument == "-h")) {
      std::printf("%s", help().c_str());
      std::exit(0);
    }
    const auto flag = std::ranges::find(known, name, &FlagUsage::name);
    if (flag == known.end()) {
      check_unknown(argument);
      rest_.push_back(argument);
    } else if (flag->value.empty()) {
      if (equals != argument.npos) internal::refuse(absl::StrCat(name, " takes no value"));
      set(name, "");
    } else {
      std::string value;
      if (equals != argument.npos) {
        value = argument.substr(equals + 1);
      } else if (i + 1 < argc && std::string(argv[i + 1]).rfind("--", 0) != 0) {
        value = argv[++i];
      }
      if (value.empty()) {
        internal::refuse(absl::StrCat(name, " needs a value, as ", name, "=", flag->value));
      }
      set(name, value);
    }
  }
}

void Flags::set(const std::string& name, const std::string& value) {
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
  } else if (name == names_.cluster) {
    cluster_file_ = value;
  } else if (name == names_.certs) {
    certs_ = value;
  } else if (name == names_.insecure) {
    insecure_ = true;
  } else if (name == names_.strategy) {
    strategy_ = value;
  } else {
    own_[name] = value;
  }
}

void Flags::check_unknown(const std::string& argument) const {
  const std::string name = argument.substr(0, argument.find('='));
  const bool is_flag = argument.size() > 1 && argument[0] == '-';
  if (is_flag) {
    const std::vector<FlagUsage> known = all();
    const auto distance = [&](const FlagUsage& flag) { return edit_distance(name, flag.name); };
    const FlagUsage& nearest = *std::ranges::min_element(known, {}, distance);
    if (distance(nearest) <= kResembling) {
      internal::refuse(absl::StrCat("'", name, "' is not a flag of this program; did you mean ",
                                    nearest.name, "?"));
    }
  }
  if (!usage_ || (!is_flag && !usage_->arguments.empty())) return;
  internal::refuse(absl::StrCat("'", is_flag ? name : argument, "' is not ",
                                is_flag ? "a flag" : "an argument", " of this program; ", program_,
                                " --help lists what it takes"));
}

std::string Flags::value(const std::string& name, const std::string& otherwise) const {
  const auto found = own_.find(name);
  return found == own_.end() ? otherwise : found->second;
}

std::string Flags::help() const {
  const std::string arguments = usage_ ? usage_->arguments : "";
  std::string text = absl::StrCat("usage: ", program_, " [FLAG...]",
                                  arguments.empty() ? "" : " " + arguments, "\n\n");
  if (usage_) absl::StrAppend(&text, usage_->about, "\n\n");
  for (const FlagUsage& flag : all()) {
    const std::string name = flag.value.empty() ? flag.name : flag.name + " " + flag.value;
    absl::StrAppend(&text, absl::StrFormat("  %-20s  %s\n", name, flag.meaning));
  }
  return text;
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
  Cluster cluster = found.to_cluster();
  cluster.strategy = flags.strategy();
  cluster.certs = flags.certs();
  cluster.insecure = flags.insecure();
  if (!cluster.strategy.empty()) internal::check_has_duty(cluster, cluster.strategy);
  return cluster;
}

}  // namespace trireme
