#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/rpc/channel.h"

namespace trireme {

// A job on one server, as `trireme jobs ls` shows it.
struct ListedJob {
  std::string job;
  uint64_t generation = 0;
  uint64_t since = 0;    // generation in which its variables began; 0 if it has none
  uint32_t members = 0;  // number of programs that hold a lease
  // Time until its variables are freed; nullopt while a program holds a lease.
  std::optional<std::chrono::milliseconds> freed_in;
  uint64_t variables = 0;  // number of variables and shards
  uint64_t bytes = 0;      // size of variables and optimizers' state
};

// Fetches the jobs of the server at the other end of a channel, sorted by id. Blocks.
absl::StatusOr<std::vector<ListedJob>> list_jobs(Channel& channel, Time deadline);
// Ends a job on the server and frees its variables. Returns false if the server does not have the
// job. Blocks.
absl::StatusOr<bool> drop_job(Channel& channel, const std::string& job, Time deadline);

}  // namespace trireme
