#include "trireme/tensor/buffer_pool.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>
#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
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

namespace trireme {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr std::chrono::seconds kWindow(10);
constexpr std::chrono::seconds kTrimInterval(30);
constexpr std::chrono::milliseconds kLowTrimTime(200);
constexpr int kTrimLimit = 64 << 20;
constexpr int kLowTrimLimit = 4 << 20;

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

// Null when there is no memory.
void* map_block(size_t size) {
  const bool huge = size >= kHugePage;
  const size_t mapped = huge ? size + kHugePage : size;
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  if (!huge) return memory;
  // Give back what lies before and behind the aligned part.
  char* start = static_cast<char*>(memory);
  char* aligned = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(start), kHugePage));
  if (aligned > start) munmap(start, aligned - start);
  munmap(aligned + size, start + mapped - (aligned + size));
  madvise(aligned, size, MADV_HUGEPAGE);
  return aligned;
}

// By itself malloc gives back only what is free at the end of a heap, and only beyond a limit that
// is high for speed. Messages of ever different sizes leave gaps before it, and a worker that once
// filled a heap of 64 MiB kept all of it. malloc_trim gives back the gaps, but the end only of the
// main heap: the others are cut by whoever frees memory while the limit is low for a moment.
// Trimming locks each heap for some milliseconds, so it is done rarely. The thread lives as long as
// the process: malloc is there to its end.
[[noreturn]] void trim_heaps_for_ever() {
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

  Block take(size_t bytes) {
    const size_t size = block_size(bytes);
    std::vector<Block> surplus;
    {
      MutexLock lock(mutex);
      used_bytes += size;
      const auto found = idle_of_size.find(size);
      if (found != idle_of_size.end()) {
        // The newest: its pages are the likeliest to be in a cache.
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
    // As LibTorch's own allocator says it.
    TORCH_CHECK(memory != nullptr, "not enough memory: a tensor of ", bytes,
                " bytes was asked for");
    return {memory, size};
  }

  void give_back(Block block) {
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

  void note_use() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const Time now = clock.now();
    if (now - window_start >= kWindow) {
      peak_before = peak;
      peak = used_bytes;
      window_start = now;
    }
    peak = std::max(peak, used_bytes);
  }

  // Takes out of the pool what it is not to keep. Idle blocks of one size are of no use to
  // another, so with sizes that change they would add up: together with the tensors in use they
  // never take more than tensors took at one time, in this window or the one before. Not more than
  // they ever took: the rare moment at which all steps are at their largest would stay for good.
  std::vector<Block> remove_surplus() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return keep_only(std::min(capacity, std::max({peak, peak_before, used_bytes}) - used_bytes));
  }
  // Takes out the oldest until no more than this is left.
  std::vector<Block> keep_only(size_t keep) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::vector<Block> removed;
    while (idle_bytes > keep) {
      removed.push_back(idle.back());
      idle_bytes -= idle.back().size;
      const auto found = idle_of_size.find(idle.back().size);
      found->second.pop_back();  // the oldest of its size, too
      if (found->second.empty()) idle_of_size.erase(found);
      idle.pop_back();
    }
    return removed;
  }

  // Outside the lock, since it takes long.
  static void unmap(const std::vector<Block>& blocks) {
    for (const Block& block : blocks) munmap(block.memory, block.size);
  }

  const Clock& clock;
  Mutex mutex;
  size_t capacity ABSL_GUARDED_BY(mutex);
  std::list<Block> idle ABSL_GUARDED_BY(mutex);  // newest first
  std::unordered_map<size_t, std::deque<std::list<Block>::iterator>> idle_of_size
      ABSL_GUARDED_BY(mutex);
  size_t idle_bytes ABSL_GUARDED_BY(mutex) = 0;
  size_t used_bytes ABSL_GUARDED_BY(mutex) = 0;
  Time window_start ABSL_GUARDED_BY(mutex) = {};
  size_t peak ABSL_GUARDED_BY(mutex) = 0;  // of used_bytes, in this window
  size_t peak_before ABSL_GUARDED_BY(mutex) = 0;
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
        lease->pool->give_back(lease->block);
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

// LibTorch may ask an allocator for a bare pointer and give it back later, so the blocks that are
// out are known by their address.
class PoolAllocator final : public c10::Allocator {
 public:
  static PoolAllocator& shared() {
    static auto* allocator = new PoolAllocator();
    return *allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes < BufferPool::kSmallestPooled) return c10::GetDefaultCPUAllocator()->allocate(bytes);
    const Block block = pool_->take(bytes);
    {
      MutexLock lock(mutex_);
      out_.emplace(block.memory, block.size);
    }
    return c10::DataPtr(block.memory, block.memory, &release, c10::Device(c10::kCPU));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* memory) { shared().give_back(memory); }

  void give_back(void* memory) {
    Block block = {memory, 0};
    {
      MutexLock lock(mutex_);
      if (const auto found = out_.find(memory); found != out_.end()) {
        block.size = found->second;
        out_.erase(found);
      }
    }
    if (block.size > 0) return pool_->give_back(block);
    c10::GetDefaultCPUAllocator()->raw_deallocate(memory);
  }

  const std::shared_ptr<BufferPool::State> pool_ = BufferPool::shared().state_;
  Mutex mutex_;
  std::unordered_map<void*, size_t> out_ ABSL_GUARDED_BY(mutex_);
};

void use_memory_as_server(size_t capacity) {
  // By itself glibc raises the size from which it maps a block of its own up to 32 MiB. Tensors of
  // some MiB then lie in its heaps and fragment them: a server that ran a pipeline grew with every
  // step. And it has up to eight heaps for each core, each of which keeps what it may keep free.
  // Settings of the user, in the environment, stay.
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  const bool told = (tunables != nullptr && std::strstr(tunables, "glibc.malloc.") != nullptr) ||
                    std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr ||
                    std::getenv("MALLOC_TRIM_THRESHOLD_") != nullptr ||
                    std::getenv("MALLOC_ARENA_MAX") != nullptr;
  if (!told) {
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    mallopt(M_TRIM_THRESHOLD, kTrimLimit);
    mallopt(M_ARENA_MAX, std::max(2, static_cast<int>(std::thread::hardware_concurrency())));
    static std::once_flag trims;
    std::call_once(trims, [] { std::thread(trim_heaps_for_ever).detach(); });
  }
  BufferPool::shared().set_capacity(capacity);
  c10::SetCPUAllocator(&PoolAllocator::shared(), /*priority=*/1);
}

}  // namespace trireme
