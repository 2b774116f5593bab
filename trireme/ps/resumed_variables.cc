#include "trireme/ps/resumed_variables.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

// A program that continues a job must find all its variables or none. All: it continues. None: the
// job ended and its variables were freed, or these variables are new in this program. Anything in
// between means that a server was restarted, or that the program has changed.
//
// Variables of the current generation do not count as found. They were created a moment ago, by
// another program of the job that starts at the same time, and have initial values.
namespace trireme::internal {
namespace {

constexpr size_t kMostListed = 5;

// Lists names with their tasks: "'w/part_0' on /job:ps/task:0, … and 3 more".
std::string list_shards(const std::vector<const ResumedShard*>& shards) {
  if (shards.empty()) return "none of these variables";
  std::string list;
  for (size_t i = 0; i < std::min(shards.size(), kMostListed); ++i) {
    absl::StrAppend(&list, i == 0 ? "" : ", ", "'", shards[i]->name,
                    "' on /job:ps/task:", shards[i]->server);
  }
  if (shards.size() > kMostListed) {
    absl::StrAppend(&list, " and ", shards.size() - kMostListed, " more");
  }
  return list;
}

}  // namespace

absl::Status check_not_mixed(const JobKey& job, const std::vector<ResumedShard>& shards,
                             const std::vector<uint64_t>& since) {
  const uint64_t oldest = since.empty() ? 0 : *std::ranges::min_element(since);
  std::vector<const ResumedShard*> found, missing;
  bool is_lost = false;  // true if a shard is missing on a server that has lost variables
  for (const ResumedShard& shard : shards) {
    if (shard.generation != 0 && shard.generation < job.generation) {
      found.push_back(&shard);
      continue;
    }
    missing.push_back(&shard);
    is_lost |= shard.generation == 0 && since[shard.server] != oldest;
  }
  if (missing.empty() || (found.empty() && !is_lost)) return absl::OkStatus();
  return make_status(
      ErrorCode::kFailedPrecondition,
      absl::StrCat("cannot resume it, because values of two runs would be mixed. Found from an "
                   "earlier program: ",
                   list_shards(found), ". Missing: ", list_shards(missing),
                   ". A parameter server was restarted, or this program makes other variables or "
                   "cuts them in another way. Start the program without resume to begin afresh"),
      {"", absl::StrCat("job '", job.id, "'")});
}

}  // namespace trireme::internal
