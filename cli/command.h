#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/format_bytes.h"
#include "trireme/base/error.h"
#include "trireme/cluster/resolver.h"
#include "trireme/rpc/credentials.h"

// Declarations that the commands share. Each command declares its options and its help in one
// add_*_command() function, and sets `run` if it is the command that was called.
namespace trireme {

struct Invocation {
  std::vector<std::string> program;  // Words after "--": a program with its arguments.
  std::function<int()> run;          // Runs the command and returns the exit code.
};

void add_server_command(CLI::App& app, Invocation& invocation);
void add_status_command(CLI::App& app, Invocation& invocation);
void add_graph_command(CLI::App& app, Invocation& invocation);
void add_jobs_command(CLI::App& app, Invocation& invocation);
void add_certs_command(CLI::App& app, Invocation& invocation);
void add_checkpoint_command(CLI::App& app, Invocation& invocation);
void add_launch_command(CLI::App& app, Invocation& invocation);

inline constexpr int kRunTimeError = 1;
inline constexpr int kUsageError = 2;

// Returns kUsageError if the user can fix the error in the command or the cluster spec, otherwise
// kRunTimeError.
int exit_code_of(const Error& error);
// Writes one line "trireme: ..." to standard error.
void say(const std::string& line);
// Returns the text of the error, which names the task once.
std::string text_of(const Error& error);

// Resolves the cluster from the flags and the environment. An empty flag was not given.
Cluster resolve_cluster(const std::string& job, const std::string& task, const std::string& file);

// Returns the credentials of a client from the folder of --certs, or insecure ones if it is empty.
Credentials client_credentials(const std::string& certs);

// Returns a callback for a wait that prints the tasks that are missing: at first, whenever their
// number changes, and every ten seconds.
std::function<void(const std::vector<TaskId>&)> report_missing_tasks(const ClusterSpec& spec);

// Converts the seconds of a flag. Throws Error, naming the flag, unless they are above 0 and at
// most 1e7.
std::chrono::milliseconds seconds_of(const std::string& flag, double seconds);

}  // namespace trireme
