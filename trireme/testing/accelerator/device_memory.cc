#include "trireme/testing/accelerator/device_memory.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "trireme/testing/accelerator/current_device.h"

// Pages are protected by Linux's memory protection keys, if the processor has them. A page with a
// key can be accessed by threads that have opened the key, and threads start without any key but
// those of the thread that started them. Each device has a key, and only the threads of its streams
// open it. So every access from elsewhere is a fault, even while a kernel runs.
namespace trireme::internal {
namespace {

std::array<int, kMaxDevices> g_keys;  // protection key by device
std::atomic<bool> g_with_keys = false;

void delete_block_reference(void* context) {
  delete static_cast<std::shared_ptr<DeviceBlock>*>(context);
}

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int index = current_device();
    const c10::Device device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index));
    if (bytes == 0) return {nullptr, device};
    auto block =
        std::make_unique<std::shared_ptr<DeviceBlock>>(std::make_shared<DeviceBlock>(index, bytes));
    void* data = (*block)->data();
    return {data, block.release(), delete_block_reference, device};
  }

  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "gpu: memory can be copied as a tensor only");
  }
};

// The host's pinned memory. A fault here would be no fault on a GPU, so these pages are ordinary.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    constexpr size_t kAlignment = 64;
    bytes = std::max((bytes + kAlignment - 1) / kAlignment * kAlignment, kAlignment);
    void* data = std::aligned_alloc(kAlignment, bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, "gpu: no memory for ", bytes,
                     " pinned bytes");
    MutexLock lock(mutex_);
    sizes_[static_cast<const char*>(data)] = bytes;
    return {data, data, [](void* pointer) { get().release(pointer); }, c10::Device(c10::kCPU)};
  }

  void copy_data(void* target, const void* source, size_t bytes) const override {
    std::memcpy(target, source, bytes);
  }

  bool contains(const void* data) {
    const char* const byte = static_cast<const char*>(data);
    MutexLock lock(mutex_);
    auto next = sizes_.upper_bound(byte);
    if (next == sizes_.begin()) return false;
    --next;
    return byte < next->first + next->second;
  }

  static PinnedAllocator& get() {
    static PinnedAllocator* const allocator = new PinnedAllocator;
    return *allocator;
  }

 private:
  void release(void* data) {
    MutexLock lock(mutex_);
    sizes_.erase(static_cast<const char*>(data));
    std::free(data);
  }

  Mutex mutex_;
  std::map<const char*, size_t> sizes_ ABSL_GUARDED_BY(mutex_);  // bytes by address
};

}  // namespace

void protect_device_memory(int devices, bool with_keys) {
  for (int i = 0; i < devices && with_keys; ++i) {
    g_keys[i] = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    with_keys = g_keys[i] >= 0;
  }
  g_with_keys = with_keys;
}

bool protected_by_keys() {
  return g_with_keys;
}

void open_device_memory_to_thread(int device) {
  if (g_with_keys) pkey_set(g_keys[device], 0);
}

DeviceBlock::DeviceBlock(int device, size_t bytes)
    : device_(device), bytes_((bytes + getpagesize() - 1) / getpagesize() * getpagesize()) {
  data_ = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  bool mapped = data_ != MAP_FAILED;
  if (mapped && g_with_keys) {
    mapped = pkey_mprotect(data_, bytes_, PROT_READ | PROT_WRITE, g_keys[device_]) == 0;
  }
  TORCH_CHECK_WITH(OutOfMemoryError, mapped, "gpu:", device, ": no memory for ", bytes,
                   " bytes: ", std::strerror(errno));
  DeviceMemoryUse& use = device_memory_use(device_);
  const int64_t now = use.bytes += static_cast<int64_t>(bytes_);
  int64_t peak = use.peak_bytes;
  while (peak < now && !use.peak_bytes.compare_exchange_weak(peak, now)) continue;
}

DeviceBlock::~DeviceBlock() {
  munmap(data_, bytes_);
  device_memory_use(device_).bytes -= static_cast<int64_t>(bytes_);
}

void DeviceBlock::open() {
  if (g_with_keys) return;
  MutexLock lock(mutex_);
  if (users_++ == 0) mprotect(data_, bytes_, PROT_READ | PROT_WRITE);
}

void DeviceBlock::close() {
  if (g_with_keys) return;
  MutexLock lock(mutex_);
  if (--users_ == 0) mprotect(data_, bytes_, PROT_NONE);
}

c10::Allocator& device_allocator() {
  static DeviceAllocator* const allocator = new DeviceAllocator;
  return *allocator;
}

std::shared_ptr<DeviceBlock> block_of(const c10::Storage& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  if (data.get() == nullptr) return nullptr;
  const auto* block = data.cast_context<std::shared_ptr<DeviceBlock>>(delete_block_reference);
  TORCH_CHECK(block != nullptr, "gpu: a storage has memory that the device has not allocated");
  return *block;
}

c10::Storage storage_as_cpu(const c10::Storage& storage) {
  const c10::Device cpu(c10::kCPU);
  auto block = std::make_unique<std::shared_ptr<DeviceBlock>>(block_of(storage));
  void* data = *block == nullptr ? nullptr : (*block)->data();
  return c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(),
                      c10::DataPtr(data, block.release(), delete_block_reference, cpu),
                      /*allocator=*/nullptr, /*resizable=*/false);
}

c10::Allocator& pinned_allocator() {
  return PinnedAllocator::get();
}

bool is_pinned_memory(const void* data) {
  return PinnedAllocator::get().contains(data);
}

DeviceMemoryUse& device_memory_use(int device) {
  static auto* const uses = new std::array<DeviceMemoryUse, kMaxDevices>;
  return (*uses)[device];
}

}  // namespace trireme::internal
