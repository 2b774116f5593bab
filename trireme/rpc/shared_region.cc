#include "trireme/rpc/shared_region.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/clock.h"
#include "trireme/base/machine.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/rpc/blocking_work.h"
#include "trireme/rpc/timer.h"

namespace trireme {
namespace {

constexpr auto kLongestIdle = std::chrono::seconds(10);
// Limit for regions and idle segments together. Each of them takes a file descriptor.
constexpr size_t kMostSegments = 64;

using Segment = std::shared_ptr<SharedSegment>;

// Returns the limit for the bytes of idle segments. A machine with little memory needs it for other
// things.
uint64_t most_idle_bytes() {
  static const uint64_t bytes = std::min(SharedRegion::kLargest, physical_memory() / 16);
  return bytes;
}

// Returns the limit for the bytes of all segments. Their memory cannot be swapped for that of
// tensors that wait to be sent, so a program that makes more calls than its servers can answer
// would run out of memory. Values beyond the limit go over connections, where servers hold them
// back.
uint64_t most_bytes() {
  static const uint64_t bytes = physical_memory() / 4;
  return bytes;
}

// Releases segments when it is destroyed. Unmapping a large one takes long, so it does not happen
// on a thread that serves the whole process.
struct EvictedSegments {
  std::vector<Segment> segments;

  ~EvictedSegments() {
    if (segments.empty()) return;
    internal::run_blocking([segments = std::move(segments)]() mutable { segments.clear(); });
  }
};

// Keeps the segments of regions that are gone for later ones. Thread-safe. Never destroyed.
class RegionPool {
 public:
  static RegionPool& shared() {
    static auto* pool = new RegionPool;
    return *pool;
  }

  absl::StatusOr<Segment> take(uint64_t bytes) {
    const uint64_t size = rounded(bytes);
    std::vector<Segment> evicted;  // unmapped after the lock is released
    {
      MutexLock lock(mutex_);
      if (const auto fits = find(bytes); fits != idle_.end()) {
        Segment segment = std::move(fits->segment);
        idle_.erase(fits);
        return segment;
      }
      while (segments_ == kMostSegments || bytes_ + size > most_bytes()) {
        if (idle_.empty()) {
          return make_status(ErrorCode::kResourceExhausted,
                             absl::StrCat(segments_, " shared regions of ", bytes_,
                                          " bytes are in use; the limits are ", kMostSegments,
                                          " regions and ", most_bytes(), " bytes"));
        }
        evicted.push_back(drop_oldest());
      }
      ++segments_;
      bytes_ += size;
    }
    auto segment = SharedSegment::create(size);
    // Idle segments of other sizes may hold the memory that is lacking.
    if (!segment.ok() && evict_idle()) segment = SharedSegment::create(size);
    if (!segment.ok()) forget(size);
    return segment;
  }

  void give_back(Segment segment) {
    EvictedSegments evicted;
    MutexLock lock(mutex_);
    idle_.push_back({std::move(segment), Clock::real().now()});
    uint64_t bytes = 0;
    for (const Idle& idle : idle_) bytes += idle.segment->size();
    for (; bytes > most_idle_bytes(); bytes -= evicted.segments.back()->size()) {
      evicted.segments.push_back(drop_oldest());
    }
    if (!idle_.empty()) sweep_later();
  }

  // Stops counting a segment of `bytes` that is not kept.
  void forget(uint64_t bytes) {
    MutexLock lock(mutex_);
    --segments_;
    bytes_ -= bytes;
  }

 private:
  struct Idle {
    Segment segment;
    Time since;
  };

  // Regions of similar sizes use the same segments: at most a quarter of one is unused.
  static uint64_t rounded(uint64_t bytes) {
    const uint64_t step = std::max<uint64_t>(std::bit_floor(bytes) / 4, 64 << 10);
    return (bytes + step - 1) / step * step;
  }

  // Returns the segment that was used last among those that fit.
  std::vector<Idle>::iterator find(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = std::find_if(idle_.rbegin(), idle_.rend(), [&](const Idle& idle) {
      return idle.segment->size() >= bytes && idle.segment->size() <= rounded(bytes);
    });
    return found == idle_.rend() ? idle_.end() : std::prev(found.base());
  }

  // Releases all idle segments. Returns false if there was none.
  bool evict_idle() {
    std::vector<Segment> evicted;  // unmapped after the lock is released
    MutexLock lock(mutex_);
    while (!idle_.empty()) evicted.push_back(drop_oldest());
    return !evicted.empty();
  }

  Segment drop_oldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Segment oldest = std::move(idle_.front().segment);
    idle_.erase(idle_.begin());
    --segments_;
    bytes_ -= oldest->size();
    return oldest;
  }

  void sweep_later() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (std::exchange(sweeps_, true)) return;
    internal::run_at(idle_.front().since + kLongestIdle, [this] { sweep(); });
  }

  void sweep() {
    EvictedSegments evicted;
    MutexLock lock(mutex_);
    sweeps_ = false;
    while (!idle_.empty() && idle_.front().since + kLongestIdle <= Clock::real().now()) {
      evicted.segments.push_back(drop_oldest());
    }
    if (!idle_.empty()) sweep_later();
  }

  Mutex mutex_;
  std::vector<Idle> idle_ ABSL_GUARDED_BY(mutex_);  // in the order in which they were returned
  size_t segments_ ABSL_GUARDED_BY(mutex_) = 0;     // number of segments, in use and idle
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;      // their bytes
  bool sweeps_ ABSL_GUARDED_BY(mutex_) = false;     // true while the timer will call sweep()
};

}  // namespace

absl::StatusOr<std::shared_ptr<SharedRegion>> SharedRegion::take(uint64_t bytes) {
  if (bytes > kLargest) {
    return make_status(ErrorCode::kResourceExhausted,
                       absl::StrCat("a shared region has at most ", kLargest, " bytes"));
  }
  TRIREME_ASSIGN_OR_RETURN(auto segment, RegionPool::shared().take(std::max<uint64_t>(bytes, 1)));
  return std::shared_ptr<SharedRegion>(new SharedRegion(std::move(segment)));
}

SharedRegion::~SharedRegion() {
  if (retired_) {
    const uint64_t bytes = segment_->size();
    const EvictedSegments retired{{std::move(segment_)}};
    RegionPool::shared().forget(bytes);
  } else {
    RegionPool::shared().give_back(std::move(segment_));
  }
}

at::Tensor SharedRegion::empty(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  at::Tensor tensor = at::from_blob(
      segment_->data() + used_, sizes, [region = shared_from_this()](void*) {}, dtype);
  used_ += padded(tensor.nbytes());
  TORCH_CHECK(used_ <= padded(segment_->size()), "a tensor does not fit into its shared region");
  return tensor;
}

uint64_t SharedRegion::offset_of(const at::Tensor& tensor) const {
  if (tensor.nbytes() == 0) return 0;  // its address means nothing
  return static_cast<const std::byte*>(tensor.const_data_ptr()) - segment_->data();
}

const std::string& internal::shared_probe() {
  static const auto* segment = new absl::StatusOr<Segment>(SharedSegment::create(1));
  static const std::string handle = segment->ok() ? (**segment)->handle() : "";
  return handle;
}

}  // namespace trireme
