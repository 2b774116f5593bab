#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

namespace trireme {

// Memory for tensors that arrive. A newly mapped page costs more than the copy into it, so large
// blocks that tensors give back are kept, up to a capacity, and used again. Blocks from 2 MiB on
// are aligned for, and advised to be, huge pages. Thread-safe; tensors may outlive the pool.
class BufferPool {
 public:
  static constexpr size_t kSmallestPooled = 256 << 10;
  static constexpr size_t kDefaultCapacity = 256 << 20;

  explicit BufferPool(size_t capacity = kDefaultCapacity);
  ~BufferPool();

  // One for the process.
  static BufferPool& shared();

  // A contiguous, uninitialised CPU tensor that owns its memory. Small ones come from LibTorch's
  // own allocator. Throws std::bad_alloc when there is no memory.
  at::Tensor empty(c10::IntArrayRef sizes, c10::ScalarType dtype);

  // Bytes that wait for their next use.
  size_t idle_bytes() const;
  // Gives them back to the system.
  void release_idle();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace trireme
