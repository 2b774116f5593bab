#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/collective/call.h"
#include "trireme/collective/group.h"
#include "trireme/rpc/shared_segment.h"

namespace trireme::internal {

// Place of a tensor in the shared memory of its rank.
struct ShmPlace {
  int64_t region = -1;  // number of the segment in the table of the rank; -1 for ordinary memory
  uint64_t offset = 0;  // first byte in the segment
};

// The segment through which the ranks of a group wait for each other, compare their calls and find
// each other's memory. Each rank writes only its own part. Used by one thread at a time, except for
// publish_region().
class ShmControl {
 public:
  static constexpr int kMaxRegions = 64;  // segments that a rank can share

  // Returns the size of the segment for this number of ranks.
  static uint64_t bytes(int ranks);

  // Uses a segment that was filled with zeros before the first rank used it. The group must outlive
  // the object.
  ShmControl(Group& group, std::shared_ptr<SharedSegment> segment);

  // Announces a call and the place of its tensor. The next wait() compares it with the calls of the
  // others. After two more calls the announcement is overwritten.
  void announce(const CollectiveCall& call, ShmPlace place);
  // Blocks until all ranks have made as many waits as this rank, including this one. Everything
  // that a rank wrote before its wait is then visible to all. Fails the group if a call differs.
  // Returns DEADLINE_EXCEEDED with the names of the missing ranks at the deadline of the call, and
  // the failure of the group soon after it has failed.
  absl::Status wait(const CollectiveCall& call);
  // Returns the failure of the group; OK while it works.
  absl::Status stopped() const;

  // Returns the place that a rank has announced for the call of the last announce(). Only after the
  // first wait() for it.
  ShmPlace place_of(int rank) const;

  // Stores the handle of a segment in the table of this rank. Thread-safe for different numbers.
  void publish_region(int region, const std::string& handle);
  // Returns the handle of a segment of a rank; empty if there is none with this number.
  std::string region_handle(int rank, int64_t region) const;

 private:
  struct Announcement;
  struct RankState;

  RankState& state(int rank) const;
  // Compares the calls of the ranks that have come since the last time. Returns the first rank
  // that has not come, or -1.
  absl::StatusOr<int> first_missing(const CollectiveCall& call);
  bool has_arrived(int rank) const;
  absl::Status compare_with(int rank, const CollectiveCall& call) const;
  absl::Status late_error(const CollectiveCall& call) const;
  // Sleeps until a rank arrives, at most until `limit`, and not for long.
  void sleep_until_arrival(int rank, Time limit) const;

  Group& group_;
  const std::shared_ptr<SharedSegment> segment_;
  const std::stop_token stop_;
  const int rank_, size_;
  const Duration spin_;     // time to wait without giving up the core
  uint32_t waits_ = 0;      // waits so far, with the one under way
  uint32_t announced_ = 0;  // calls so far
  bool compare_ = false;    // true until the first wait of a call is over
  std::vector<char> seen_;  // true for the ranks that are known to have made the present wait
};

}  // namespace trireme::internal
