#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>

// An allocator for tensors in which any access outside of a block crashes the process. It replaces
// LibTorch's allocator for the whole process. Not thread-safe.
namespace trireme::fuzz {

struct GuardedMemory {
  // Replaces LibTorch's allocator. Must be called before the first tensor is made.
  static void install();

  // Sets the byte with which new blocks are filled.
  static void set_fill(uint8_t byte);

  // If true, new blocks end at an unmapped page; if false, they begin at one.
  static void set_at_end(bool at_end);

  // Makes the block of `tensor` read-only, so that a write to it crashes the process.
  static void protect(const at::Tensor& tensor);

  // Limits of one block and of all blocks. Larger allocations fail as if memory were exhausted.
  static constexpr size_t kMaxBlockBytes = 16 << 20;
  static constexpr size_t kMaxBytesInUse = 256 << 20;
};

// Drops LibTorch's warnings about strange arguments, which are expected here.
struct SilentWarnings : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace trireme::fuzz
