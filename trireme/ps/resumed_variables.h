#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trireme/ps/job_key.h"

namespace trireme::internal {

// A shard that a resumed program is about to create or to find.
struct ResumedShard {
  std::string name;
  int server = 0;           // index of the ps task
  uint64_t generation = 0;  // generation of the job that created it; 0 if it does not exist
};

// Returns FAILED_PRECONDITION if the shards would mix values of an earlier generation with new
// ones: some of them exist since an earlier generation and others do not, or a shard is missing on
// a server that has lost variables of the job. The error lists some of both kinds. `since` has, for
// each server, the generation in which the job's variables there began: a server that was restarted
// has the current one, while others have an earlier one.
absl::Status check_not_mixed(const JobKey& job, const std::vector<ResumedShard>& shards,
                             const std::vector<uint64_t>& since);

}  // namespace trireme::internal
