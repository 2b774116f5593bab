#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/cluster/environment.h"
#include "trireme/cluster/resolver.h"

namespace trireme {

// Names of the flags that Flags reads, for a program that uses others.
struct FlagNames {
  std::string task_type = "--task_type";    // name of the flag with this task's role
  std::string task_index = "--task_index";  // name of the flag with this task's index
  std::string cluster = "--cluster";        // name of the flag with the file of the cluster spec
  std::string certs = "--certs";            // name of the flag with the folder of certificates
  std::string strategy = "--strategy";      // name of the flag with the name of the strategy
};

// Command-line flags that tell a process which task it is, written "--task_type=ps" or
// "--task_type ps":
//
//   --task_type ROLE     worker, chief, ps or evaluator
//   --task_index N       number of this task among the tasks of its role
//   --cluster FILE       cluster spec, as JSON
//   --certs FOLDER       certificates, for the options of a Server, strategy or session
//   --strategy NAME      name of a strategy, for make_strategy()
//
// Other flags are left to the program, and so is everything from "--" on:
//
//   tr::Flags flags(argc, argv);
//   tr::Cluster cluster = tr::resolve(flags);
class Flags {
 public:
  // Stands for a command line without these flags.
  Flags() = default;
  // Reads the flags of main(). If a flag is given twice, the last one counts. Throws Error if a
  // value is missing or malformed.
  Flags(int argc, const char* const* argv, FlagNames names = {});

  // Returns this task's role; nullopt if it was not given.
  const std::optional<std::string>& task_type() const { return task_type_; }
  // Returns this task's number among the tasks of its role; nullopt if it was not given.
  const std::optional<int>& task_index() const { return task_index_; }
  // Returns the path of the cluster spec; nullopt if it was not given.
  const std::optional<std::string>& cluster_file() const { return cluster_file_; }
  // Returns the folder of certificates; an empty string if it was not given.
  const std::string& certs() const { return certs_; }
  // Returns the name of the strategy; an empty string if it was not given.
  const std::string& strategy() const { return strategy_; }

  // Returns the names of the flags.
  const FlagNames& names() const { return names_; }

  // Returns the arguments that are left to the program, in order, without the program's name.
  const std::vector<std::string>& rest() const { return rest_; }

 private:
  bool is_ours(const std::string& name) const;
  void set(const std::string& name, const std::string& value);

  FlagNames names_;
  std::optional<std::string> task_type_;
  std::optional<int> task_index_;
  std::optional<std::string> cluster_file_;
  std::string certs_, strategy_;
  std::vector<std::string> rest_;
};

// Finds the cluster and this process's task in it. Reads the first source that exists: the file of
// --cluster, TF_CONFIG, the variables of torchrun, those of Slurm. Without any of them, the process
// is a local task. --task_type and --task_index each override what the source says of the task; a
// file does not say it. Throws Error if the source or the task is not valid.
Cluster resolve(const Flags& flags, const Environment& environment = process_environment());

}  // namespace trireme
