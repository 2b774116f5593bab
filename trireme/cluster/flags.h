#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/cluster/environment.h"
#include "trireme/cluster/resolver.h"

namespace trireme {

// What a program calls the flags below, if it has names of its own for them.
struct FlagNames {
  std::string task_type = "--task_type";
  std::string task_index = "--task_index";
  std::string cluster = "--cluster";
  std::string certs = "--certs";
};

// The flags that tell a process who it is, written "--task_type=ps" or "--task_type ps":
//
//   --task_type ROLE     worker, chief, ps or evaluator
//   --task_index N       its number among the tasks of that role
//   --cluster FILE       the cluster, as JSON
//   --certs FOLDER       its certificates, for the options of a Server, strategy or session
//
// All others are left to the program, and so is everything from a "--" on. If a flag is given
// twice, the last one holds. Throws Error if a value is missing or cannot be read.
class Flags {
 public:
  Flags() = default;
  Flags(int argc, const char* const* argv, FlagNames names = {});

  const std::optional<std::string>& task_type() const { return task_type_; }
  const std::optional<int>& task_index() const { return task_index_; }
  const std::optional<std::string>& cluster_file() const { return cluster_file_; }

  const std::string& certs() const { return certs_; }  // empty: none

  const FlagNames& names() const { return names_; }

  // What was not ours, in its order and without the program's name.
  const std::vector<std::string>& rest() const { return rest_; }

 private:
  bool is_ours(const std::string& name) const;
  void set(const std::string& name, const std::string& value);

  FlagNames names_;
  std::optional<std::string> task_type_;
  std::optional<int> task_index_;
  std::optional<std::string> cluster_file_;
  std::string certs_;
  std::vector<std::string> rest_;
};

// The cluster from the first of these that is there: the file of --cluster, TF_CONFIG, torchrun's
// variables, Slurm's; else a local task. --task_type and --task_index stand above the task that
// the environment tells, each for itself; a file tells none.
Cluster resolve(const Flags& flags, const Environment& environment = process_environment());

}  // namespace trireme
