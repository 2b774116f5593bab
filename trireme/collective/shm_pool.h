#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/collective/shm_control.h"
#include "trireme/rpc/shared_segment.h"

namespace trireme::internal {

// Allocates tensors in shared segments of this rank. Segments are never returned, so that the
// others can keep them open: all of them end with the pool. The tensors keep the pool alive.
// Thread-safe.
class ShmPool : public std::enable_shared_from_this<ShmPool> {
 public:
  // `publish` receives the number and the handle of each new segment, inside allocate(). It is
  // called by one thread at a time.
  using Publish = std::function<void(int region, const std::string& handle)>;
  explicit ShmPool(Publish publish) : publish_(std::move(publish)) {}

  // Returns a tensor of bytes whose address is a multiple of 64. Returns an undefined tensor if
  // there is not enough memory, or if there are too many segments.
  at::Tensor allocate(int64_t bytes);

  // Returns the place of this memory, if it lies in a segment of the pool.
  ShmPlace find(const void* data, uint64_t bytes) const;

 private:
  struct Region {
    std::shared_ptr<SharedSegment> segment;
    std::map<uint64_t, uint64_t> free;  // bytes of the free ranges by their first byte
  };

  // Takes the first free range that is large enough. The region of the result is -1 if there is
  // none.
  ShmPlace take(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds a segment with room for `bytes`. Returns false if that is not possible.
  bool grow(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void release(ShmPlace place, uint64_t bytes);

  const Publish publish_;
  mutable Mutex mutex_;
  std::vector<Region> regions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
