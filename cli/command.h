#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/cluster/resolver.h"
#include "trireme/rpc/credentials.h"

// What the commands share. A command declares its options and its help in one function, and sets
// `run` when it is the one that was called.
namespace trireme {

struct Invocation {
  std::vector<std::string> program;  // what stands after "--"
  std::function<int()> run;          // its result is the exit code
};

void add_server_command(CLI::App& app, Invocation& invocation);
void add_status_command(CLI::App& app, Invocation& invocation);
void add_graph_command(CLI::App& app, Invocation& invocation);
void add_certs_command(CLI::App& app, Invocation& invocation);
void add_launch_command(CLI::App& app, Invocation& invocation);

inline constexpr int kRunTimeError = 1;
inline constexpr int kUsageError = 2;

// Two for what the user can mend in the command or the spec, else one.
int exit_code_of(const Error& error);
// One line "trireme: ..." on standard error.
void say(const std::string& line);
// The error as one line, in which the task stands once.
std::string text_of(const Error& error);

// The cluster from flags, of which the empty ones were not given, and the environment.
Cluster resolve_cluster(const std::string& job, const std::string& task, const std::string& file);

// Those of a client in the folder of --certs; an empty one: none.
Credentials client_credentials(const std::string& certs);

// For whoever waits: says who is missing, again when fewer are, and every ten seconds.
std::function<void(const std::vector<TaskId>&)> say_for_whom(const ClusterSpec& spec);

// Throws Error, naming the flag, unless the value is a number of seconds that one can wait.
std::chrono::milliseconds seconds_of(const std::string& flag, double seconds);

}  // namespace trireme
