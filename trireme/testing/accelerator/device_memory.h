#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <cstddef>
#include <memory>

#include "trireme/base/mutex.h"

// The memory of the stand-in accelerator's devices, and the host's pinned memory.
namespace trireme::internal {

// Chooses how the memory of `devices` devices is protected. Called once, before anything is
// allocated.
void protect_device_memory(int devices, bool with_keys);

// Returns true if a protection key guards the memory of each device: then pages are open to threads
// of their device only. Otherwise they are open to all threads while a kernel runs on them.
bool protected_by_keys();

// Lets the calling thread, and threads that it starts, access the memory of a device.
void open_device_memory_to_thread(int device);

// A piece of a device's memory: whole pages, which nobody but the device's kernels may access. A
// tensor's storage and the kernels that use it share a block. Thread-safe.
class DeviceBlock {
 public:
  DeviceBlock(int device, size_t bytes);
  ~DeviceBlock();

  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;

  void* data() const { return data_; }

  // Bracket each kernel that uses the block. They do nothing if keys protect the memory.
  void open();
  void close();

 private:
  const int device_;
  const size_t bytes_;  // a multiple of the page size
  void* data_;
  Mutex mutex_;
  int users_ ABSL_GUARDED_BY(mutex_) = 0;  // kernels that run on it now
};

// Allocates blocks on the current device of the thread.
c10::Allocator& device_allocator();
// Returns the block of a storage, or null if the storage has no memory.
std::shared_ptr<DeviceBlock> block_of(const c10::Storage& storage);
// Returns a storage of the CPU with the same memory. Kernels on a thread of the device may use it.
c10::Storage storage_as_cpu(const c10::Storage& storage);

// Allocates memory of the host that counts as pinned.
c10::Allocator& pinned_allocator();
bool is_pinned_memory(const void* data);

// Bytes allocated on a device.
struct DeviceMemoryUse {
  std::atomic<int64_t> bytes = 0;
  std::atomic<int64_t> peak_bytes = 0;
};
DeviceMemoryUse& device_memory_use(int device);

}  // namespace trireme::internal
