#pragma once

#include <functional>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/collective/gather_table.h"
#include "trireme/rpc/channel.h"

namespace trireme::internal {

// A round of a GatherTable, as one rank takes part in it.
struct GatherLoop {
  std::string purpose;  // "to join group 'x'"
  std::string group;    // name of the group
  uint64_t group_id = 0;
  std::string key;
  GatherEntry entry;
  std::string task;          // task of this rank
  Channel* root = nullptr;   // channel to rank 0; null at rank 0
  uint64_t incarnation = 0;  // start of rank 0 that is meant; 0 for any
  // Enter the table at rank 0 itself, and withdraw from it.
  std::function<void(GatherEntry entry, GatherTable::Done done)> enter;
  std::function<void()> withdraw;
  std::function<std::string(int rank)> name_of;
  // Called with the members that are missing, and with "" at the end.
  std::function<void(const std::string& missing)> note;
  // Returns an error to stop waiting for a member.
  std::function<absl::Status(int rank)> give_up = nullptr;
  Time deadline;
  std::stop_token stop = {};
};

// Asks until the bytes of all ranks have come, and logs which ranks are missing after 2 s and then
// in growing intervals. Blocks until the deadline at most.
absl::StatusOr<GatherAnswer> gather_all(const GatherLoop& loop);

}  // namespace trireme::internal
