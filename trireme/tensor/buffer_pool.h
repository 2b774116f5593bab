#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

#include "trireme/base/clock.h"

namespace trireme {

// Allocates memory for received tensors and for the results of a server's operators, and recycles
// it. A newly mapped page costs more than the copy into it, so the pool keeps large blocks when
// their tensors are freed. It keeps at most `capacity` bytes, and not more than the tensors' recent
// peak (buffer_pool.cc). Blocks of 2 MiB or more are aligned to, and advised as, huge pages.
// Thread-safe. Tensors may outlive the pool.
class BufferPool {
 public:
  // Smaller tensors come from LibTorch's own allocator.
  static constexpr size_t kSmallestPooled = 256 << 10;
  static constexpr size_t kDefaultCapacity = 256 << 20;

  // The clock must outlive the pool and all of its tensors.
  explicit BufferPool(size_t capacity = kDefaultCapacity, const Clock& clock = Clock::real());
  ~BufferPool();

  // Returns the pool of the process, which is never destroyed.
  static BufferPool& shared();

  // Returns a contiguous, uninitialized CPU tensor that owns its memory. Throws c10::Error if there
  // is not enough memory. Sets `*reused` to true if the memory belonged to another tensor before;
  // tensors below kSmallestPooled leave it unchanged.
  at::Tensor empty(c10::IntArrayRef sizes, c10::ScalarType dtype, bool* reused = nullptr);

  // Returns the bytes of the blocks that no tensor uses.
  size_t idle_bytes() const;
  // Sets the maximum of idle_bytes() and unmaps the blocks beyond it.
  void set_capacity(size_t bytes);
  // Unmaps all idle blocks.
  void release_idle();

 private:
  friend class PoolAllocator;
  struct State;

  c10::DataPtr allocate(size_t bytes, bool* reused);

  std::shared_ptr<State> state_;
};

// While it lives, operators of the calling thread allocate large results from the shared pool, as
// they do everywhere in a server. For steps of a program, which need the same memory again and
// again. Objects may be nested.
class PooledResults {
 public:
  PooledResults();
  ~PooledResults();

  PooledResults(const PooledResults&) = delete;
  PooledResults& operator=(const PooledResults&) = delete;
};

// Configures the memory of a process that is only a server. LibTorch's operators allocate from the
// shared pool, which keeps up to `pool_capacity` idle bytes. malloc is tuned against fragmentation,
// and its free memory is returned to the system periodically. Not for client programs, because both
// LibTorch's CPU allocator and the settings of malloc are global to the process. Blocks are reused
// without being cleared, so graphs must not contain operators that return memory which they did not
// write (docs/decisions/operators-in-graphs.md).
void configure_memory_for_server(size_t pool_capacity);

}  // namespace trireme
