#pragma once

#include <chrono>
#include <string>

#include "trireme/cluster/resolver.h"

namespace trireme {

// Options of end_job().
struct EndJobOptions {
  std::string reason = "the program has ended";  // reason in the servers' logs
  std::string certs;  // folder with this program's certificates; empty for that of the Cluster
  std::chrono::milliseconds timeout = std::chrono::seconds(2);  // time limit for each task
};

// Tells the workers and parameter servers of a cluster that the job has ended. Server::join() then
// returns in servers that exit with the job (ServerOptions::exit_with_job). Tasks that do not
// answer are named in the log. Blocks.
void end_job(const ClusterSpec& spec, const EndJobOptions& options = {});
// Does the same for the tasks that serve this process. Does nothing without a cluster, where
// workers train themselves, and in a process that no task serves: the evaluator, or a server.
void end_job(const Cluster& cluster, const EndJobOptions& options = {});

}  // namespace trireme
