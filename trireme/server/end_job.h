#pragma once

#include <chrono>
#include <string>

#include "trireme/cluster/cluster_spec.h"

namespace trireme {

struct EndJobOptions {
  std::string reason = "the program has ended";  // for the servers' logs
  std::string certs;                             // the folder with this program's certificates
  std::chrono::milliseconds timeout = std::chrono::seconds(2);  // for each task
};

// Tells the workers and parameter servers of a cluster that the job is over; Server::join() then
// returns in those that exit with it. Who does not answer is named in the log.
void end_job(const ClusterSpec& spec, const EndJobOptions& options = {});

}  // namespace trireme
