#include "trireme/ps/stream_capture.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "trireme/base/crc32c.h"

// Each segment goes through these states:
//
//   live -> copying -> copied
//
// A change takes its segments through them before it writes: it copies live ones into the pool. A
// writing thread does the same with the segments of the blocks that it has claimed, but copies live
// ones straight into its buffer; those that changes have copied it takes from the pool. So every
// segment is copied by exactly one thread while it has the contents at the begin of the save, and a
// variable needs no lock while it is written: a live segment does not change, since every change
// calls before_change() first. The state says who copies, and it changes under mutex_ only, which
// is never held during a copy.
//
// Segments, not blocks, have states, because a block may hold parts of many small variables, each
// of which is changed under its own lock.
//
// A change waits, with the lock of its variable held, for room in the pool and for copies by
// writing threads. Writing threads take no locks of variables, so they always make room, unless
// the disk fails or hangs. In both cases the capture ends and the changes proceed.
namespace trireme::internal {
namespace {

// Waits for copies, which take microseconds, are repeated after this time.
constexpr Duration kCopyTime = std::chrono::seconds(1);
// Waits for room are counted at least this often.
constexpr Duration kCountedTime = std::chrono::milliseconds(100);

}  // namespace

StreamCapture::StreamCapture(std::shared_ptr<const SavedImage> image, Duration stuck_after)
    : image_(std::move(image)),
      stuck_after_(stuck_after),
      states_(image_->segments().size()),
      crcs_(image_->segments().size()),
      claimed_(image_->blocks()),
      pooled_(image_->segments().size()),
      written_at_(Clock::real().now()) {}

void StreamCapture::before_change(const StoredVariable& variable, const at::Tensor& ids) {
  Duration waited = {};
  for (const SavedImage::Place& place : image_->places(variable)) {
    if (ended_) break;
    if (!ids.defined()) {
      for (size_t i = 0; i < place.segments; ++i) secure(place.first_segment + i, waited);
      continue;
    }
    const auto rows = static_cast<uint64_t>(variable.tensor.size(0));
    const uint64_t row_bytes = rows == 0 ? 0 : place.bytes / rows;
    if (row_bytes == 0) continue;
    const auto* id = static_cast<const int64_t*>(ids.const_data_ptr());
    for (int64_t i = 0; i < ids.numel(); ++i) {
      const uint64_t begin = static_cast<uint64_t>(id[i]) * row_bytes;
      const size_t last = place.segment_of(begin + row_bytes - 1);
      for (size_t segment = place.segment_of(begin); segment <= last; ++segment) {
        secure(segment, waited);
      }
    }
  }
  if (!ended_) return;
  MutexLock lock(mutex_);
  wait_for_readers();
}

void StreamCapture::secure(size_t segment, Duration& waited) {
  if (states_[segment].load(std::memory_order_acquire) == kCopied) return;
  char* const memory = begin_copy(segment, waited);
  if (memory == nullptr) return;
  std::memcpy(memory, image_->segments()[segment].data, image_->segments()[segment].bytes);
  finish_copy(segment);
}

char* StreamCapture::begin_copy(size_t segment, Duration& waited) {
  const uint64_t bytes = cost(segment);
  MutexLock lock(mutex_);
  while (true) {
    if (states_[segment] == kCopied) return nullptr;
    if (states_[segment] == kCopying) {
      changed_.wait_until(mutex_, after(kCopyTime));
      continue;
    }
    if (ended_) return nullptr;
    if (has_room(segment)) break;
    const Time begin = Clock::real().now();
    if (begin >= written_at_ + stuck_after_) {
      stuck_ = true;
      ended_ = true;
      changed_.notify_all();
      return nullptr;
    }
    changed_.wait_until(mutex_, std::min(written_at_ + stuck_after_, begin + kCountedTime));
    const Duration more = Clock::real().now() - begin;
    waited += more;
    stats_.waited += more;
    stats_.longest_wait = std::max(stats_.longest_wait, waited);
  }
  states_[segment] = kCopying;
  pool_bytes_ += bytes;
  stats_.pool_peak = std::max(stats_.pool_peak, pool_bytes_);
  Memory& memory = pooled_[segment];
  if (bytes == SavedImage::kBlockBytes && !free_.empty()) {
    memory = std::move(free_.back());
    free_.pop_back();
  } else {
    memory = Memory(new char[bytes]);
  }
  return memory.get();
}

void StreamCapture::finish_copy(size_t segment) {
  const size_t block = image_->segments()[segment].offset / SavedImage::kBlockBytes;
  MutexLock lock(mutex_);
  states_[segment].store(kCopied, std::memory_order_release);
  if (!claimed_[block]) touched_.push_back(block);
  changed_.notify_all();
}

void StreamCapture::wait_for_readers() {
  while (readers_ > 0) changed_.wait_until(mutex_, after(kCopyTime));
}

uint64_t StreamCapture::cost(size_t segment) const {
  // Large segments take the memory of a whole block, which can be used again for any other.
  const uint64_t bytes = image_->segments()[segment].bytes;
  return bytes > SavedImage::kBlockBytes / 2 ? SavedImage::kBlockBytes : bytes;
}

bool StreamCapture::has_room(size_t segment) const {
  return pool_bytes_ + cost(segment) <= kPoolBytes;
}

void StreamCapture::release_pooled(size_t segment) {
  if (pooled_[segment] == nullptr) return;
  pool_bytes_ -= cost(segment);
  if (cost(segment) == SavedImage::kBlockBytes && !ended_) {
    free_.push_back(std::move(pooled_[segment]));
  }
  pooled_[segment].reset();
}

std::optional<StreamCapture::Run> StreamCapture::claim() {
  MutexLock lock(mutex_);
  if (ended_) return std::nullopt;
  while (!touched_.empty() && claimed_[touched_.front()]) touched_.pop_front();
  while (next_ < claimed_.size() && claimed_[next_]) ++next_;
  if (next_ == claimed_.size()) return std::nullopt;
  Run run{touched_.empty() ? next_ : touched_.front(), 0};
  while (run.count < kRunBlocks && run.first + run.count < claimed_.size() &&
         !claimed_[run.first + run.count]) {
    claimed_[run.first + run.count++] = true;
  }
  return run;
}

bool StreamCapture::copy(const Run& run, char* out) {
  const uint64_t begin = run.first * SavedImage::kBlockBytes;
  const size_t first = image_->first_segment(run.first);
  const size_t end = image_->first_segment(run.first + run.count);
  std::vector<size_t> own;                          // live segments, copied from the variables
  std::vector<std::pair<size_t, char*>> from_pool;  // segments that changes have copied
  {
    MutexLock lock(mutex_);
    if (ended_) return false;
    ++readers_;
    for (size_t segment = first; segment < end; ++segment) {
      if (states_[segment] != kLive) continue;
      states_[segment] = kCopying;
      own.push_back(segment);
    }
  }
  const auto copy_from = [&](size_t segment, const char* data) {
    const SavedImage::Segment& to = image_->segments()[segment];
    crcs_[segment] = copy_with_crc(out + (to.offset - begin), data, to.bytes);
  };
  for (const size_t segment : own) copy_from(segment, image_->segments()[segment].data);
  {
    MutexLock lock(mutex_);
    for (const size_t segment : own) states_[segment].store(kCopied, std::memory_order_release);
    changed_.notify_all();
    for (size_t segment = first; segment < end; ++segment) {
      while (states_[segment] == kCopying) changed_.wait_until(mutex_, after(kCopyTime));
      if (pooled_[segment] != nullptr) from_pool.emplace_back(segment, pooled_[segment].get());
    }
  }
  for (const auto& [segment, data] : from_pool) copy_from(segment, data);
  MutexLock lock(mutex_);
  --readers_;
  for (const auto& [segment, data] : from_pool) release_pooled(segment);
  changed_.notify_all();
  return !ended_;
}

void StreamCapture::note_written() {
  MutexLock lock(mutex_);
  written_at_ = Clock::real().now();
}

void StreamCapture::end() {
  MutexLock lock(mutex_);
  ended_ = true;
  changed_.notify_all();
  wait_for_readers();
  for (size_t segment = 0; segment < pooled_.size(); ++segment) {
    if (states_[segment] == kCopied) release_pooled(segment);
  }
  free_.clear();
}

StreamCapture::Stats StreamCapture::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

}  // namespace trireme::internal
