#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>

// Memory for tensors in which every step outside of a block is a fault. Replaces LibTorch's
// allocator for the whole process.
namespace trireme::fuzz {

struct GuardedMemory {
  // Takes over; before the first tensor is made.
  static void install();

  // The byte that new blocks are filled with.
  static void set_fill(uint8_t byte);

  // If true, new blocks end at an unmapped page; if false, they begin at one.
  static void set_at_end(bool at_end);

  // Makes the block of `tensor` read-only, so that a write to it is a fault.
  static void protect(const at::Tensor& tensor);

  // No block is larger, as if the machine had no more.
  static constexpr size_t kLargestBlock = 16 << 20;
  static constexpr size_t kMostInUse = 256 << 20;
};

// Warnings of LibTorch about strange arguments are not news here.
struct SilentWarnings : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace trireme::fuzz
