#include "trireme/collective/shm_pool.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "trireme/base/logging.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

constexpr uint64_t kPoolAlignment = 64;
constexpr uint64_t kMinRegion = uint64_t{64} << 20;

}  // namespace

at::Tensor ShmPool::allocate(int64_t bytes) {
  if (bytes < 0 || bytes > std::numeric_limits<int64_t>::max() / 2) return {};
  const uint64_t rounded = std::max<uint64_t>(bytes + kPoolAlignment - 1, kPoolAlignment) /
                           kPoolAlignment * kPoolAlignment;
  ShmPlace place;
  std::byte* data = nullptr;
  {
    MutexLock lock(mutex_);
    place = take(rounded);
    if (place.region < 0 && grow(rounded)) place = take(rounded);
    if (place.region < 0) return {};
    data = regions_[place.region].segment->data() + place.offset;
  }
  return at::from_blob(
      data, {bytes},
      [pool = shared_from_this(), place, rounded](void*) { pool->release(place, rounded); },
      at::TensorOptions(at::kByte));
}

ShmPlace ShmPool::find(const void* data, uint64_t bytes) const {
  const auto address = reinterpret_cast<uintptr_t>(data);
  MutexLock lock(mutex_);
  for (size_t region = 0; region < regions_.size(); ++region) {
    const SharedSegment& segment = *regions_[region].segment;
    const auto start = reinterpret_cast<uintptr_t>(segment.data());
    if (address >= start && bytes <= segment.size() && address - start <= segment.size() - bytes) {
      return {.region = static_cast<int64_t>(region), .offset = address - start};
    }
  }
  return {};
}

ShmPlace ShmPool::take(uint64_t bytes) {
  for (size_t region = 0; region < regions_.size(); ++region) {
    auto& free = regions_[region].free;
    const auto found =
        std::find_if(free.begin(), free.end(), [&](const auto& it) { return it.second >= bytes; });
    if (found == free.end()) continue;
    const auto [offset, room] = *found;
    free.erase(found);
    if (room > bytes) free[offset + bytes] = room - bytes;
    return {.region = static_cast<int64_t>(region), .offset = offset};
  }
  return {};
}

bool ShmPool::grow(uint64_t bytes) {
  if (regions_.size() == ShmControl::kMaxRegions) {
    log_warning("a rank can share at most ", ShmControl::kMaxRegions,
                " segments of memory; further tensors are copied for collectives");
    return false;
  }
  auto segment = SharedSegment::create(std::max(bytes, kMinRegion));
  if (!segment.ok()) {
    log_warning(describe(segment.status()), "; tensors are copied for collectives");
    return false;
  }
  publish_(static_cast<int>(regions_.size()), (*segment)->handle());
  const uint64_t size = (*segment)->size();
  regions_.push_back({.segment = *std::move(segment), .free = {{0, size}}});
  return true;
}

void ShmPool::release(ShmPlace place, uint64_t bytes) {
  MutexLock lock(mutex_);
  auto& free = regions_[place.region].free;
  const auto added = free.emplace(place.offset, bytes).first;
  const auto next = std::next(added);
  if (next != free.end() && added->first + added->second == next->first) {
    added->second += next->second;
    free.erase(next);
  }
  if (added == free.begin()) return;
  const auto before = std::prev(added);
  if (before->first + before->second == added->first) {
    before->second += added->second;
    free.erase(added);
  }
}

}  // namespace trireme::internal
