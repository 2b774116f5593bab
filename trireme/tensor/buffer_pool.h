#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

#include "trireme/base/clock.h"

namespace trireme {

// Memory for tensors that arrive, and for those that a server computes. A newly mapped page costs
// more than the copy into it, so large blocks that tensors give back are kept, up to a capacity
// and to what tensors took at one time in the last seconds of use, and used again. Blocks from 2
// MiB on are aligned for, and advised to be, huge pages. Thread-safe; tensors may outlive the pool.
class BufferPool {
 public:
  static constexpr size_t kSmallestPooled = 256 << 10;
  static constexpr size_t kDefaultCapacity = 256 << 20;

  // The clock has to outlive the tensors, too.
  explicit BufferPool(size_t capacity = kDefaultCapacity, const Clock& clock = Clock::real());
  ~BufferPool();

  // One for the process.
  static BufferPool& shared();

  // A contiguous, uninitialised CPU tensor that owns its memory. Small ones come from LibTorch's
  // own allocator. Throws c10::Error when there is no memory. `reused` tells whether another tensor
  // had that memory before.
  at::Tensor empty(c10::IntArrayRef sizes, c10::ScalarType dtype, bool* reused = nullptr);

  // Bytes that wait for their next use.
  size_t idle_bytes() const;
  // How many of them it keeps at most.
  void set_capacity(size_t bytes);
  // Gives them back to the system.
  void release_idle();

 private:
  friend class PoolAllocator;
  struct State;

  c10::DataPtr allocate(size_t bytes, bool* reused);

  std::shared_ptr<State> state_;
};

// How a process that is a server and nothing else uses memory: operators take that of their results
// from the shared pool, which keeps so much of what they give back, and malloc is told not to
// fragment; what its heaps hold free is given back to the system now and then. Not for the user's
// own programs: LibTorch has one CPU allocator, and malloc one setting. A block is reused as it is,
// so graphs must not hold operators that return memory which they did not write
// (docs/decisions/operators-in-graphs.md).
void use_memory_as_server(size_t pool_capacity);

}  // namespace trireme
