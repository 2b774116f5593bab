#include "trireme/tensor/buffer_pool.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trireme/base/mutex.h"

// How the pool decides what to keep.
//
// A freed block becomes idle and is kept for the next tensor of the same block size; sizes are
// rounded so that slightly different tensors share one. Idle blocks of one size cannot serve
// another size, so with sizes that keep changing they would add up without a limit. Therefore idle
// and used blocks together never exceed the peak of the used bytes in the current window of ten
// seconds or in the window before. The peak since the start is not used, because a rare moment at
// which all steps are at their largest would then hold its memory forever. When blocks must go, the
// oldest idle blocks are unmapped first.
//
// All state is under one mutex, but mmap and munmap, which take long, are called without it: blocks
// to unmap are first moved out of the pool. Every tensor shares the ownership of the state, so that
// it can return its block after the pool itself is gone.

namespace trireme {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr std::chrono::seconds kWindow(10);             // Length of a window.
constexpr std::chrono::seconds kTrimInterval(30);       // Time between two trims of malloc's heaps.
constexpr std::chrono::milliseconds kLowTrimTime(200);  // Time during which kLowTrimLimit holds.
constexpr int kTrimLimit = 64 << 20;    // Free bytes that malloc may keep at the end of a heap.
constexpr int kLowTrimLimit = 4 << 20;  // The same limit while the heaps are trimmed.

size_t round_up(size_t size, size_t step) {
  return (size + step - 1) / step * step;
}

// Returns the size of the block for a tensor. Sizes are coarse, so that blocks fit other tensors
// again, but at most an eighth too large.
size_t block_size(size_t bytes) {
  if (bytes >= 16 * kHugePage) return round_up(bytes, kHugePage);
  size_t step = BufferPool::kSmallestPooled / 8;
  while (step * 16 < bytes) step *= 2;
  return round_up(bytes, step);
}

// Maps a block, aligned to huge pages if it is large enough. Returns null if there is no memory.
void* map_block(size_t size) {
  const bool huge = size >= kHugePage;
  const size_t mapped = huge ? size + kHugePage : size;
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  if (!huge) return memory;
  // Unmap the memory before and after the aligned part.
  char* start = static_cast<char*>(memory);
  char* aligned = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(start), kHugePage));
  if (aligned > start) munmap(start, aligned - start);
  munmap(aligned + size, start + mapped - (aligned + size));
  madvise(aligned, size, MADV_HUGEPAGE);
  return aligned;
}

// Returns free memory of malloc's heaps to the system, periodically. By itself malloc returns only
// the free end of a heap, and only beyond a limit that is high for speed. Messages of changing
// sizes leave gaps before the end, so a worker that once filled a heap of 64 MiB kept all of it.
// malloc_trim() returns the gaps in all heaps, but the free end only of the main heap. The ends of
// the others are cut by the threads that free memory while the limit is lowered for a moment.
// Trimming locks each heap for some milliseconds, so it is done rarely. The thread never ends,
// because malloc is in use until the process ends.
[[noreturn]] void trim_heaps_periodically() {
  for (;;) {
    std::this_thread::sleep_for(kTrimInterval);
    mallopt(M_TRIM_THRESHOLD, kLowTrimLimit);
    std::this_thread::sleep_for(kLowTrimTime);
    mallopt(M_TRIM_THRESHOLD, kTrimLimit);
    malloc_trim(/*pad=*/kLowTrimLimit);
  }
}

struct Block {
  void* memory;
  size_t size;
  bool reused = false;
};

}  // namespace

struct BufferPool::State {
  State(size_t capacity, const Clock& clock) : clock(clock), capacity(capacity) {}
  ~State() {
    for (const Block& block : idle) munmap(block.memory, block.size);
  }

  // Returns an idle block of the right size, or maps a new one. Throws c10::Error if there is no
  // memory, even after all idle blocks have been unmapped.
  Block take(size_t bytes) {
    const size_t size = block_size(bytes);
    std::vector<Block> surplus;
    {
      MutexLock lock(mutex);
      used_bytes += size;
      const auto found = idle_of_size.find(size);
      if (found != idle_of_size.end()) {
        // Take the newest block: its pages are the most likely to be in a cache.
        const Block block = *found->second.front();
        idle.erase(found->second.front());
        found->second.pop_front();
        if (found->second.empty()) idle_of_size.erase(found);
        idle_bytes -= block.size;
        note_use();
        return {block.memory, block.size, true};
      }
      surplus = remove_surplus();
    }
    unmap(surplus);
    void* memory = map_block(size);
    if (memory == nullptr) {
      release_idle();
      memory = map_block(size);
    }
    {
      MutexLock lock(mutex);
      if (memory == nullptr) used_bytes -= size;
      note_use();
    }
    // Throw the same exception type as LibTorch's own allocator.
    TORCH_CHECK(memory != nullptr, "not enough memory: a tensor of ", bytes,
                " bytes was requested");
    return {memory, size};
  }

  // Makes the block of a freed tensor idle.
  void recycle(Block block) {
    std::vector<Block> surplus;
    {
      MutexLock lock(mutex);
      note_use();
      used_bytes -= block.size;
      idle.push_front(block);
      idle_of_size[block.size].push_front(idle.begin());
      idle_bytes += block.size;
      surplus = remove_surplus();
    }
    unmap(surplus);
  }

  void set_capacity(size_t bytes) {
    std::vector<Block> surplus;
    {
      MutexLock lock(mutex);
      capacity = bytes;
      surplus = remove_surplus();
    }
    unmap(surplus);
  }

  void release_idle() {
    std::vector<Block> surplus;
    {
      MutexLock lock(mutex);
      surplus = keep_only(0);
    }
    unmap(surplus);
  }

  // Updates the peaks of the current and the previous window.
  void note_use() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const Time now = clock.now();
    if (now - window_start >= kWindow) {
      peak_before = peak;
      peak = used_bytes;
      window_start = now;
    }
    peak = std::max(peak, used_bytes);
  }

  // Removes the blocks beyond the capacity or the recent peak from the pool and returns them for
  // unmap().
  std::vector<Block> remove_surplus() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return keep_only(std::min(capacity, std::max({peak, peak_before, used_bytes}) - used_bytes));
  }
  // Removes the oldest blocks until at most `keep` idle bytes are left, and returns them.
  std::vector<Block> keep_only(size_t keep) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::vector<Block> removed;
    while (idle_bytes > keep) {
      removed.push_back(idle.back());
      idle_bytes -= idle.back().size;
      const auto found = idle_of_size.find(idle.back().size);
      found->second.pop_back();  // The oldest block of all is also the oldest of its size.
      if (found->second.empty()) idle_of_size.erase(found);
      idle.pop_back();
    }
    return removed;
  }

  // Called without the lock, because munmap takes long.
  static void unmap(const std::vector<Block>& blocks) {
    for (const Block& block : blocks) munmap(block.memory, block.size);
  }

  const Clock& clock;
  Mutex mutex;
  size_t capacity ABSL_GUARDED_BY(mutex);
  std::list<Block> idle ABSL_GUARDED_BY(mutex);  // Newest first, as is each deque below.
  std::unordered_map<size_t, std::deque<std::list<Block>::iterator>> idle_of_size
      ABSL_GUARDED_BY(mutex);
  size_t idle_bytes ABSL_GUARDED_BY(mutex) = 0;
  size_t used_bytes ABSL_GUARDED_BY(mutex) = 0;
  Time window_start ABSL_GUARDED_BY(mutex) = {};
  size_t peak ABSL_GUARDED_BY(mutex) = 0;         // Peak of used_bytes in this window.
  size_t peak_before ABSL_GUARDED_BY(mutex) = 0;  // Peak in the window before.
};

BufferPool::BufferPool(size_t capacity, const Clock& clock)
    : state_(std::make_shared<State>(capacity, clock)) {}
BufferPool::~BufferPool() = default;

BufferPool& BufferPool::shared() {
  static auto* pool = new BufferPool();
  return *pool;
}

c10::DataPtr BufferPool::allocate(size_t bytes, bool* reused) {
  if (bytes < kSmallestPooled) return c10::GetDefaultCPUAllocator()->allocate(bytes);
  struct Lease {
    std::shared_ptr<State> pool;
    Block block;
  };
  auto* lease = new Lease{state_, state_->take(bytes)};
  if (reused != nullptr) *reused = lease->block.reused;
  return c10::DataPtr(
      lease->block.memory, lease,
      [](void* context) {
        std::unique_ptr<Lease> lease(static_cast<Lease*>(context));
        lease->pool->recycle(lease->block);
      },
      c10::Device(c10::kCPU));
}

at::Tensor BufferPool::empty(c10::IntArrayRef sizes, c10::ScalarType dtype, bool* reused) {
  size_t bytes = c10::elementSize(dtype);
  for (int64_t size : sizes) bytes *= size;

  c10::DataPtr data = allocate(bytes, reused);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       std::move(data), c10::GetCPUAllocator(),
                                                       /*resizable=*/true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

void BufferPool::set_capacity(size_t bytes) {
  state_->set_capacity(bytes);
}

void BufferPool::release_idle() {
  state_->release_idle();
}

size_t BufferPool::idle_bytes() const {
  MutexLock lock(state_->mutex);
  return state_->idle_bytes;
}

// Lets LibTorch's operators allocate from the shared pool. LibTorch may take a raw pointer from an
// allocator and free it later by its address alone, so the size of each block in use is kept by
// address.
class PoolAllocator final : public c10::Allocator {
 public:
  static PoolAllocator& shared() {
    static auto* allocator = new PoolAllocator();
    return *allocator;
  }

  // Makes it LibTorch's allocator. Threads use the pool if they have a PooledResults, or all of
  // them with `everywhere`.
  void install(bool everywhere) {
    static std::once_flag once;
    std::call_once(once, [this] { c10::SetCPUAllocator(this, /*priority=*/1); });
    if (everywhere) everywhere_ = true;
  }
  bool is_everywhere() const { return everywhere_; }
  // Returns the number of PooledResults of the calling thread.
  static int& scopes_of_thread() {
    thread_local int scopes = 0;
    return scopes;
  }

  c10::DataPtr allocate(size_t bytes) override {
    const bool pooled = bytes >= BufferPool::kSmallestPooled &&
                        (scopes_of_thread() > 0 || everywhere_.load(std::memory_order_relaxed));
    if (!pooled) return c10::GetDefaultCPUAllocator()->allocate(bytes);
    const Block block = pool_->take(bytes);
    {
      MutexLock lock(mutex_);
      in_use_.emplace(block.memory, block.size);
    }
    return c10::DataPtr(block.memory, block.memory, &release, c10::Device(c10::kCPU));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* memory) { shared().recycle(memory); }

  void recycle(void* memory) {
    Block block = {memory, 0};
    {
      MutexLock lock(mutex_);
      if (const auto found = in_use_.find(memory); found != in_use_.end()) {
        block.size = found->second;
        in_use_.erase(found);
      }
    }
    if (block.size > 0) return pool_->recycle(block);
    c10::GetDefaultCPUAllocator()->raw_deallocate(memory);
  }

  const std::shared_ptr<BufferPool::State> pool_ = BufferPool::shared().state_;
  std::atomic<bool> everywhere_ = false;  // True if all threads use the pool.
  Mutex mutex_;
  std::unordered_map<void*, size_t> in_use_ ABSL_GUARDED_BY(mutex_);  // Sizes of blocks in use.
};

void configure_memory_for_server(size_t capacity) {
  // By default glibc raises the size from which it maps blocks separately to up to 32 MiB. Tensors
  // of a few MiB then lie in its heaps and fragment them: a server that ran a pipeline grew with
  // every step. glibc also has up to eight heaps per core, each of which may keep free memory.
  // Settings that the user made in the environment take precedence.
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  const bool user_configured =
      (tunables != nullptr && std::strstr(tunables, "glibc.malloc.") != nullptr) ||
      std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr ||
      std::getenv("MALLOC_TRIM_THRESHOLD_") != nullptr ||
      std::getenv("MALLOC_ARENA_MAX") != nullptr;
  if (!user_configured) {
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    mallopt(M_TRIM_THRESHOLD, kTrimLimit);
    mallopt(M_ARENA_MAX, std::max(2, static_cast<int>(std::thread::hardware_concurrency())));
    static std::once_flag trims;
    std::call_once(trims, [] { std::thread(trim_heaps_periodically).detach(); });
  }
  BufferPool::shared().set_capacity(capacity);
  PoolAllocator::shared().install(/*everywhere=*/true);
}

// The pool of a program keeps no more than its steps need (see above), up to a part of the
// machine's memory.
PooledResults::PooledResults() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (!PoolAllocator::shared().is_everywhere()) {
      const auto pages = static_cast<size_t>(std::max(0L, sysconf(_SC_PHYS_PAGES)));
      const size_t memory = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
      BufferPool::shared().set_capacity(std::max(BufferPool::kDefaultCapacity, memory / 4));
    }
    PoolAllocator::shared().install(/*everywhere=*/false);
  });
  ++PoolAllocator::scopes_of_thread();
}

PooledResults::~PooledResults() {
  --PoolAllocator::scopes_of_thread();
}

}  // namespace trireme
