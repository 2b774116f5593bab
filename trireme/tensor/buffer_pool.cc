#include "trireme/tensor/buffer_pool.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <sys/mman.h>

#include <cstdint>
#include <list>
#include <new>
#include <utility>
#include <vector>

#include "trireme/base/mutex.h"

namespace trireme {
namespace {

constexpr size_t kHugePage = 2 << 20;

size_t round_up(size_t size, size_t step) {
  return (size + step - 1) / step * step;
}

// Sizes a block may have. Coarse enough for blocks to fit again, at most an eighth too large.
size_t block_size(size_t bytes) {
  if (bytes >= 16 * kHugePage) return round_up(bytes, kHugePage);
  size_t step = BufferPool::kSmallestPooled / 8;
  while (step * 16 < bytes) step *= 2;
  return round_up(bytes, step);
}

void* map_block(size_t size) {
  const bool huge = size >= kHugePage;
  const size_t mapped = huge ? size + kHugePage : size;
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  if (!huge) return memory;
  // Give back what lies before and behind the aligned part.
  char* start = static_cast<char*>(memory);
  char* aligned = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(start), kHugePage));
  if (aligned > start) munmap(start, aligned - start);
  munmap(aligned + size, start + mapped - (aligned + size));
  madvise(aligned, size, MADV_HUGEPAGE);
  return aligned;
}

struct Block {
  void* memory;
  size_t size;
};

}  // namespace

struct BufferPool::State {
  explicit State(size_t capacity) : capacity(capacity) {}
  ~State() {
    for (const Block& block : idle) munmap(block.memory, block.size);
  }

  Block take(size_t bytes) {
    const size_t size = block_size(bytes);
    {
      MutexLock lock(mutex);
      // Newest first: its pages are the likeliest to be in a cache.
      for (auto it = idle.begin(); it != idle.end(); ++it) {
        if (it->size != size) continue;
        Block block = *it;
        idle.erase(it);
        idle_bytes -= block.size;
        return block;
      }
    }
    return {map_block(size), size};
  }

  void give_back(Block block) {
    {
      MutexLock lock(mutex);
      idle.push_front(block);
      idle_bytes += block.size;
    }
    shrink_to(capacity);
  }

  // Unmaps the oldest; outside the lock, since it takes long.
  void shrink_to(size_t bytes) {
    std::vector<Block> surplus;
    {
      MutexLock lock(mutex);
      while (idle_bytes > bytes) {
        surplus.push_back(idle.back());
        idle_bytes -= idle.back().size;
        idle.pop_back();
      }
    }
    for (const Block& old : surplus) munmap(old.memory, old.size);
  }

  const size_t capacity;
  Mutex mutex;
  std::list<Block> idle ABSL_GUARDED_BY(mutex);
  size_t idle_bytes ABSL_GUARDED_BY(mutex) = 0;
};

BufferPool::BufferPool(size_t capacity) : state_(std::make_shared<State>(capacity)) {}
BufferPool::~BufferPool() = default;

BufferPool& BufferPool::shared() {
  static auto* pool = new BufferPool();
  return *pool;
}

at::Tensor BufferPool::empty(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  size_t bytes = c10::elementSize(dtype);
  for (int64_t size : sizes) bytes *= size;

  c10::DataPtr data;
  if (bytes < kSmallestPooled) {
    data = c10::GetCPUAllocator()->allocate(bytes);
  } else {
    struct Lease {
      std::shared_ptr<State> pool;
      Block block;
    };
    auto* lease = new Lease{state_, state_->take(bytes)};
    data = c10::DataPtr(
        lease->block.memory, lease,
        [](void* context) {
          std::unique_ptr<Lease> lease(static_cast<Lease*>(context));
          lease->pool->give_back(lease->block);
        },
        c10::Device(c10::kCPU));
  }
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       std::move(data), c10::GetCPUAllocator(),
                                                       /*resizable=*/true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

void BufferPool::release_idle() {
  state_->shrink_to(0);
}

size_t BufferPool::idle_bytes() const {
  MutexLock lock(state_->mutex);
  return state_->idle_bytes;
}

}  // namespace trireme
