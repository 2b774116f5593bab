#include "trireme/rpc/segment_cache.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/rpc/blocking_work.h"
#include "trireme/rpc/shared_region.h"
#include "trireme/rpc/timer.h"

namespace trireme::internal {
namespace {

constexpr size_t kMostEntries = 1024;
constexpr auto kLongestUnused = std::chrono::seconds(10);

// Releases segments when it is destroyed. Unmapping a large one takes long, so it does not happen
// on a thread that serves the whole process.
struct DroppedSegments {
  std::vector<std::shared_ptr<SharedSegment>> segments;

  ~DroppedSegments() {
    if (segments.empty()) return;
    run_blocking([segments = std::move(segments)]() mutable { segments.clear(); });
  }
};

}  // namespace

absl::StatusOr<std::shared_ptr<SharedSegment>> SegmentCache::open(const std::string& handle) {
  const Time now = Clock::real().now();
  {
    MutexLock lock(mutex_);
    if (const auto found = entries_.find(handle); found != entries_.end()) {
      found->second.used = now;
      return found->second.segment;
    }
  }
  // Clients make no larger segments. Mapping one keeps a thread busy that serves other calls.
  auto opened = SharedSegment::open(handle, std::min(limit_, SharedRegion::kLargest));
  if (!opened.ok()) {
    if (error_code(opened.status()) == ErrorCode::kInvalidArgument) return opened.status();
    return make_status(ErrorCode::kUnavailable, std::string(opened.status().message()));
  }
  DroppedSegments dropped;
  MutexLock lock(mutex_);
  const auto [entry, is_new] = entries_.try_emplace(handle, Entry{*opened, now});
  if (!is_new) return entry->second.segment;  // another call has opened it at the same time
  std::shared_ptr<SharedSegment> segment = *opened;
  bytes_ += segment->size();
  dropped.segments = drop_unused(now - kLongestUnused);
  meet_limits(dropped.segments);
  sweep_later();
  return segment;
}

uint64_t SegmentCache::bytes() const {
  MutexLock lock(mutex_);
  return bytes_;
}

SegmentCache::Dropped SegmentCache::drop_unused(Time before) {
  Dropped dropped;
  for (const auto& [handle, entry] : entries_) {
    if (!entry.segment->is_closed() && entry.used >= before) continue;
    bytes_ -= entry.segment->size();
    dropped.push_back(entry.segment);
  }
  for (const auto& segment : dropped) entries_.erase(segment->handle());
  return dropped;
}

void SegmentCache::meet_limits(Dropped& dropped) {
  while (!entries_.empty() && (bytes_ > limit_ || entries_.size() > kMostEntries)) {
    const auto oldest = std::min_element(
        entries_.begin(), entries_.end(),
        [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
    bytes_ -= oldest->second.segment->size();
    dropped.push_back(std::move(oldest->second.segment));
    entries_.erase(oldest);
  }
}

void SegmentCache::sweep_later() {
  if (std::exchange(sweeps_, true)) return;
  run_at(after(kLongestUnused), [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->sweep();
  });
}

void SegmentCache::sweep() {
  DroppedSegments dropped;
  MutexLock lock(mutex_);
  sweeps_ = false;
  dropped.segments = drop_unused(Clock::real().now() - kLongestUnused);
  if (!entries_.empty()) sweep_later();
}

}  // namespace trireme::internal
