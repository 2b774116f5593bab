#include "tests/fuzz/operators/guarded_memory.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <cstring>
#include <unordered_map>

namespace trireme::fuzz {
namespace {

constexpr size_t kPage = 4096;

uint8_t fill_byte = 0;
bool at_end = true;
size_t in_use = 0;

struct Block {
  char* pages;  // an unmapped page, the pages of the block, an unmapped page
  size_t length;
};

// All blocks, by the address that their user sees.
std::unordered_map<void*, Block>& blocks() {
  static auto* all = new std::unordered_map<void*, Block>;
  return *all;
}

void free_block(void* data) {
  const auto found = blocks().find(data);
  if (found == blocks().end()) return;
  munmap(found->second.pages, found->second.length);
  in_use -= found->second.length;
  blocks().erase(found);
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, free_block, c10::Device(at::kCPU)};
    const size_t inside = (bytes + kPage - 1) / kPage * kPage;
    TORCH_CHECK(
        bytes <= GuardedMemory::kMaxBlockBytes && in_use + inside <= GuardedMemory::kMaxBytesInUse,
        "guarded memory: you tried to allocate ", bytes, " bytes");
    const size_t length = inside + 2 * kPage;
    void* pages = mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(pages != MAP_FAILED, "guarded memory: no address is free");
    char* begin = static_cast<char*>(pages) + kPage;
    TORCH_CHECK(mprotect(begin, inside, PROT_READ | PROT_WRITE) == 0, "guarded memory: mprotect");
    std::memset(begin, fill_byte, inside);
    in_use += length;
    char* data = at_end ? begin + inside - bytes : begin;
    blocks()[data] = {static_cast<char*>(pages), length};
    return {data, data, free_block, c10::Device(at::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return free_block; }
};

}  // namespace

void GuardedMemory::install() {
  static auto* allocator = new Allocator;
  c10::SetCPUAllocator(allocator, /*priority=*/255);
}

void GuardedMemory::set_fill(uint8_t byte) {
  fill_byte = byte;
}

void GuardedMemory::set_at_end(bool end) {
  at_end = end;
}

void GuardedMemory::protect(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const auto found = blocks().find(tensor.storage().mutable_data());
  if (found == blocks().end()) return;
  mprotect(found->second.pages + kPage, found->second.length - 2 * kPage, PROT_READ);
}

}  // namespace trireme::fuzz
