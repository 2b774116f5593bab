#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "trireme/rpc/shared_segment.h"

namespace trireme {

// Memory of this process for the tensors of one operation, which servers on the same machine read
// and write directly (shared_message.h). A region is a whole shared segment. When the region is
// destroyed, its segment is kept for a later one, because new memory costs more than the copies
// that it saves. At most 1 GiB and a sixteenth of the memory are kept, for at most ten seconds, and
// only while no other region lacks the memory.
//
// empty() is not thread-safe, the rest is.
class SharedRegion : public std::enable_shared_from_this<SharedRegion> {
 public:
  static constexpr uint64_t kLargest = uint64_t{1} << 30;
  static constexpr uint64_t kAlignment = 64;
  // Returns the bytes that a tensor of `bytes` takes in a region.
  static uint64_t padded(uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // Returns a region of at least `bytes`. Returns RESOURCE_EXHAUSTED if there is not enough memory,
  // if the region would be larger than kLargest, or if too many are in use. The tensors are then
  // sent over the connection.
  static absl::StatusOr<std::shared_ptr<SharedRegion>> take(uint64_t bytes);

  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  const std::string& handle() const { return segment_->handle(); }
  // Returns an uninitialized tensor in the next bytes of the region, and keeps the region alive as
  // long as the tensor. The tensors must fit: each takes padded() bytes.
  at::Tensor empty(c10::IntArrayRef sizes, c10::ScalarType dtype);
  // Returns the place of a tensor that lies in the region, in bytes from its start.
  uint64_t offset_of(const at::Tensor& tensor) const;

  // Keeps the memory from being used again, because a server may still read or write it: a call
  // ended without an answer. The tensors of the region stay valid, but may change.
  void retire() { retired_ = true; }
  bool retired() const { return retired_; }

 private:
  explicit SharedRegion(std::shared_ptr<SharedSegment> segment) : segment_(std::move(segment)) {}

  std::shared_ptr<SharedSegment> segment_;
  uint64_t used_ = 0;  // bytes taken by empty()
  std::atomic<bool> retired_ = false;
};

namespace internal {

// Returns the handle of a small segment of this process, by which a server finds out whether it can
// open the segments of this process. Empty if no segment can be created.
const std::string& shared_probe();

}  // namespace internal
}  // namespace trireme
