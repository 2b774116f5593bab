#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

// Which value of a graph a tensor is, while capturing.
//
// A tensor's identity is its memory and its geometry, not its TensorImpl: autograd's saved tensors
// and `.data()` are new TensorImpls that no operator announces. All references to memory are weak:
// a strong one would make autograd copy gradients that it otherwise takes over, and so change what
// is captured.
namespace trireme::internal {

// Where in its memory a tensor lies and how it is read.
struct Geometry {
  c10::ScalarType dtype;
  int64_t offset;  // in bytes, from the memory's base
  std::vector<int64_t> sizes, strides;
  bool conjugate, negative;
  bool wrapped_number;

  bool operator==(const Geometry&) const = default;
};

enum class MemoryOrigin {
  kResult,            // made by a node
  kInput,             // an argument of the step
  kVariable,          // a variable; kernels work on a scratch copy of it
  kConstant,          // made inside the step by no operator: the graph's own
  kExternal,          // found outside of the step: a constant of the graph, never written
  kLeftoverGradient,  // what a step before this one left in `.grad`
};

struct Memory {
  MemoryOrigin origin = MemoryOrigin::kResult;
  size_t index = 0;  // which input or variable
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;
  int64_t base = 0;  // bytes into the storage
  std::vector<std::pair<Geometry, uint32_t>> values;
  uint64_t fingerprint = 0;
  int64_t node = -1;     // the node that made it
  bool factory = false;  // made from no tensor, and not written by an operator since
  bool written = false;  // by an operator of this capture

  bool alive() const { return storage && storage->use_count() > 0; }
};

class ValueTable {
 public:
  // Null for memory that was never seen. Addresses stay.
  Memory* find(const at::Tensor& tensor);
  Memory& add(const at::Tensor& tensor, MemoryOrigin origin, size_t index);
  // Lets another storage mean the same memory: a variable and its scratch copy.
  void alias(const at::Tensor& tensor, Memory& memory);

  static Geometry geometry_of(const at::Tensor& tensor, int64_t base);
  Geometry geometry_of(const at::Tensor& tensor);
  static std::optional<uint32_t> lookup(const Memory& memory, const Geometry& geometry);

  // Sparse tensors have no memory of their own: what they are made of tells them apart.
  std::optional<uint32_t> find_sparse(const at::Tensor& tensor) const;
  void set_sparse(const at::Tensor& tensor, uint32_t value);

  const std::deque<Memory>& memories() const { return memories_; }

 private:
  struct Place {
    Memory* memory;
    int64_t base;
    c10::weak_intrusive_ptr<c10::StorageImpl> hold;  // keeps the address from being used again
  };
  struct Sparse {
    const void *indices, *values;
    std::vector<int64_t> sizes;
    bool coalesced;

    bool operator==(const Sparse&) const = default;
  };
  static Sparse sparse_of(const at::Tensor& tensor);

  std::deque<Memory> memories_;
  std::unordered_map<const c10::StorageImpl*, Place> places_;
  std::vector<std::pair<Sparse, uint32_t>> sparse_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> held_;
};

}  // namespace trireme::internal
