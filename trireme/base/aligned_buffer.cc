#include "trireme/base/aligned_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/files.h"
#include "trireme/base/status.h"

namespace trireme {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

absl::StatusOr<AlignedBuffer> AlignedBuffer::make(size_t bytes) {
  const absl::Status no_memory =
      make_status(ErrorCode::kResourceExhausted,
                  absl::StrCat("there is not enough memory for a buffer of ", bytes, " bytes"));
  if (bytes > std::numeric_limits<size_t>::max() / 2) return no_memory;
  AlignedBuffer buffer;
  buffer.size_ = std::max<size_t>(whole_direct_blocks(bytes), kDirectBlock);
  const bool huge = buffer.size_ >= kHugePage;
  buffer.mapped_size_ = buffer.size_ + (huge ? kHugePage : 0);
  void* mapped = mmap(nullptr, buffer.mapped_size_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return no_memory;
  buffer.mapped_ = mapped;
  auto address = reinterpret_cast<uintptr_t>(mapped);
  if (huge) {
    address = (address + kHugePage - 1) / kHugePage * kHugePage;
    madvise(reinterpret_cast<void*>(address), buffer.size_, MADV_HUGEPAGE);
  }
  buffer.data_ = reinterpret_cast<char*>(address);
  return buffer;
}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this == &other) return *this;
  release();
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  mapped_ = std::exchange(other.mapped_, nullptr);
  mapped_size_ = std::exchange(other.mapped_size_, 0);
  return *this;
}

void AlignedBuffer::release() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_size_);
  data_ = nullptr;
  mapped_ = nullptr;
  size_ = mapped_size_ = 0;
}

}  // namespace trireme
