#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/rpc/shared_segment.h"

namespace trireme::internal {

// The shared segments of callers that a server has mapped. Mapping a segment takes longer than many
// calls, so it is kept for the next call. A mapping keeps the memory of a segment that its owner
// has dropped, so such segments are let go when another one is mapped, and those that no call has
// used for some seconds by a timer. Thread-safe. Segments in use outlive the cache.
class SegmentCache : public std::enable_shared_from_this<SegmentCache> {
 public:
  // `limit` is the number of bytes that may be mapped in all.
  explicit SegmentCache(uint64_t limit) : limit_(limit) {}

  // Returns the segment of a handle. Fails with INVALID_ARGUMENT if the text is not a handle, and
  // with UNAVAILABLE if the segment cannot be mapped, or has more bytes than the limit permits.
  absl::StatusOr<std::shared_ptr<SharedSegment>> open(const std::string& handle);

  // Returns the bytes that are mapped.
  uint64_t bytes() const;

 private:
  struct Entry {
    std::shared_ptr<SharedSegment> segment;
    Time used;  // time of the last call
  };
  using Dropped = std::vector<std::shared_ptr<SharedSegment>>;

  // Removes the segments that their owners have dropped, and those that were not used since
  // `before`. The result is destroyed after the lock is released.
  Dropped drop_unused(Time before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes those that were not used for the longest time, until the limits are met.
  void meet_limits(Dropped& dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void sweep_later() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void sweep();

  const uint64_t limit_;
  mutable Mutex mutex_;
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);  // by handle
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool sweeps_ ABSL_GUARDED_BY(mutex_) = false;  // true while the timer will call sweep()
};

}  // namespace trireme::internal
