#pragma once

#include <cstddef>

#include "absl/status/statusor.h"

namespace trireme {

// Memory for direct access to files: aligned to pages, and to huge pages if it is large. Its pages
// are zero and take no memory until they are touched. Movable; not thread-safe by itself.
class AlignedBuffer {
 public:
  // Maps at least `bytes` of memory. Returns RESOURCE_EXHAUSTED if that is not possible.
  static absl::StatusOr<AlignedBuffer> make(size_t bytes);

  AlignedBuffer() = default;
  ~AlignedBuffer() { release(); }
  AlignedBuffer(AlignedBuffer&& other) noexcept { *this = static_cast<AlignedBuffer&&>(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;

  char* data() { return data_; }
  const char* data() const { return data_; }
  // Returns the length that was asked for, rounded up to a multiple of kDirectBlock.
  size_t size() const { return size_; }

  // Returns the memory to the system; data() is null afterwards.
  void release();

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
  void* mapped_ = nullptr;  // Begin of the mapping, which is larger than the buffer.
  size_t mapped_size_ = 0;
};

}  // namespace trireme
