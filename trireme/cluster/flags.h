#pragma once

#include <map>
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
  std::string insecure = "--insecure";      // name of the flag that does without certificates
  std::string strategy = "--strategy";      // name of the flag with the name of the strategy
};

// A flag of a program's own.
struct FlagUsage {
  std::string name;     // its name, "--devices"
  std::string value;    // word for its value in the help, "LIST"; empty if it takes none
  std::string meaning;  // its line in the help
};

// A program's own command line, for its help and for finding mistakes in what it was given.
struct Usage {
  std::string about;           // sentences at the beginning of the help
  std::string arguments = "";  // arguments without dashes, "[FOLDER]"; empty if it takes none
  std::vector<FlagUsage> flags = {};  // flags of the program, beside those that Flags reads
};

// Command-line flags that tell a process which task it is, written "--task_type=ps" or
// "--task_type ps":
//
//   --task_type ROLE     worker, chief, ps or evaluator
//   --task_index N       number of this task among the tasks of its role
//   --cluster FILE       cluster spec, as JSON
//   --certs FOLDER       certificates of this process
//   --insecure           listen on addresses of other machines without certificates
//   --strategy NAME      name of a strategy, for make_strategy()
//
// The program adds its own flags, and --help, which prints all of them:
//
//   tr::Flags flags(argc, argv, tr::Usage{.about = "Trains a net.", .arguments = "[FOLDER]",
//                                         .flags = {{"--steps", "N", "number of steps"}}});
//   tr::Cluster me = tr::resolve(flags);
//   const std::string steps = flags.value("--steps", "100");
//
// Everything from "--" on is left to the program.
class Flags {
 public:
  // Stands for a command line without these flags.
  Flags() = default;
  // Reads the flags of main(), and leaves all others to the program, in rest(). If a flag is given
  // twice, the last one counts. Throws Error if a value is missing or malformed, or if a flag
  // resembles one of those above, as "--clutser" does.
  Flags(int argc, const char* const* argv, FlagNames names = {});
  // Does the same for a program that describes its flags. With --help, prints them and ends the
  // process with code 0. Throws Error for any other flag, and names the one that it resembles, and
  // for an argument if the program takes none.
  Flags(int argc, const char* const* argv, Usage usage, FlagNames names = {});

  // Returns this task's role; nullopt if it was not given.
  const std::optional<std::string>& task_type() const { return task_type_; }
  // Returns this task's number among the tasks of its role; nullopt if it was not given.
  const std::optional<int>& task_index() const { return task_index_; }
  // Returns the path of the cluster spec; nullopt if it was not given.
  const std::optional<std::string>& cluster_file() const { return cluster_file_; }
  // Returns the folder of certificates; an empty string if it was not given.
  const std::string& certs() const { return certs_; }
  // Returns true if --insecure was given.
  bool insecure() const { return insecure_; }
  // Returns the name of the strategy; an empty string if it was not given.
  const std::string& strategy() const { return strategy_; }

  // Returns true if a flag of the program's own was given.
  bool has(const std::string& name) const { return own_.contains(name); }
  // Returns the value of a flag of the program's own, or `otherwise` if it was not given.
  std::string value(const std::string& name, const std::string& otherwise = "") const;

  // Returns the names of the flags.
  const FlagNames& names() const { return names_; }

  // Returns the arguments that are left to the program, in order, without the program's name.
  const std::vector<std::string>& rest() const { return rest_; }

  // Returns the text that --help prints.
  std::string help() const;

 private:
  // Returns the flags that this class reads, followed by the program's own.
  std::vector<FlagUsage> all() const;
  void read(int argc, const char* const* argv);
  void set(const std::string& name, const std::string& value);
  // Throws Error for a flag that nobody knows, unless it may be one of the program's.
  void check_unknown(const std::string& argument) const;

  std::string program_;
  FlagNames names_;
  std::optional<Usage> usage_;  // null if the program's own flags are not known
  std::optional<std::string> task_type_;
  std::optional<int> task_index_;
  std::optional<std::string> cluster_file_;
  std::string certs_, strategy_;
  bool insecure_ = false;
  std::map<std::string, std::string> own_;
  std::vector<std::string> rest_;
};

// Finds the cluster and this process's task in it. Reads the first source that exists: the file of
// --cluster, TF_CONFIG, the variables of torchrun, those of Slurm. Without any of them, the process
// is a local task. --task_type and --task_index each override what the source says of the task; a
// file does not say it. The strategy and the certificates of the cluster are those of the flags.
// Throws Error if the source or the task is not valid, and if the strategy of --strategy has no use
// for this process, which would serve nobody or train alone.
Cluster resolve(const Flags& flags, const Environment& environment = process_environment());

}  // namespace trireme
