#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

// Maps tensors to values of a graph, during a capture.
//
// A tensor is identified by its memory and its geometry, not by its TensorImpl: autograd's saved
// tensors and `.data()` are new TensorImpls that no operator announces. All references to memory
// are weak. A strong one would make autograd copy gradients that it otherwise takes over, and so
// change the operators that are captured.
namespace trireme::internal {

// Position of a tensor in its memory and how its bytes are interpreted.
struct Geometry {
  c10::ScalarType dtype;
  int64_t offset;  // in bytes, from the memory's base
  std::vector<int64_t> sizes, strides;
  bool conjugate, negative;  // true if the view conjugates or negates lazily
  bool wrapped_number;  // true for a tensor made of a C++ number, which does not promote dtypes

  bool operator==(const Geometry&) const = default;
};

// Where a memory comes from.
enum class MemoryOrigin {
  kResult,            // made by a node
  kInput,             // an argument of the step
  kVariable,          // a variable; kernels work on a scratch copy of it
  kConstant,          // made in the step and filled without an operator; a constant of the graph
  kExternal,          // made outside of the step; a constant of the graph that must not be written
  kLeftoverGradient,  // a gradient that an earlier step left in `.grad`; must not be used
};

// A storage that tensors of the step lie in. A variable and its scratch copy are one memory.
struct Memory {
  MemoryOrigin origin = MemoryOrigin::kResult;
  size_t index = 0;  // index of the input or of the variable; 0 for other origins
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;
  int64_t base = 0;  // offset in the storage, in bytes, from which geometries count
  std::vector<std::pair<Geometry, uint32_t>> values;  // values of the graph that lie in it
  uint64_t fingerprint = 0;  // hash of the bytes after the last write by an operator
  int64_t node = -1;         // index of the node that made it; -1 for other origins than kResult
  bool factory = false;      // true if made from no tensor and not written by an operator since
  bool written = false;      // true once an operator of this capture wrote to it

  bool alive() const { return storage && storage->use_count() > 0; }
};

// The memories and values of one capture. Not thread-safe.
class ValueTable {
 public:
  // Returns null for memory that was never added. The address stays valid as long as the table.
  Memory* find(const at::Tensor& tensor);
  Memory& add(const at::Tensor& tensor, MemoryOrigin origin, size_t index);
  // Makes the storage of `tensor` another name for `memory`: a variable and its scratch copy.
  void alias(const at::Tensor& tensor, Memory& memory);

  static Geometry geometry_of(const at::Tensor& tensor, int64_t base);
  // Returns the geometry of a tensor in its memory, which must be known.
  Geometry geometry_of(const at::Tensor& tensor);
  // Returns the value of `memory` with this geometry; nullopt if there is none.
  static std::optional<uint32_t> lookup(const Memory& memory, const Geometry& geometry);

  // Sparse tensors have no storage of their own. They are identified by the storages of their
  // indices and values.
  std::optional<uint32_t> find_sparse(const at::Tensor& tensor) const;
  void set_sparse(const at::Tensor& tensor, uint32_t value);

  const std::deque<Memory>& memories() const { return memories_; }

 private:
  struct Place {
    Memory* memory;
    int64_t base;
    c10::weak_intrusive_ptr<c10::StorageImpl> hold;  // keeps the address from being reused
  };
  struct Sparse {
    const void *indices, *values;
    std::vector<int64_t> sizes;
    bool coalesced;

    bool operator==(const Sparse&) const = default;
  };
  static Sparse sparse_of(const at::Tensor& tensor);

  std::deque<Memory> memories_;  // a deque, so that addresses stay valid
  std::unordered_map<const c10::StorageImpl*, Place> places_;
  std::vector<std::pair<Sparse, uint32_t>> sparse_;
  // Storages of sparse tensors, held weakly to keep their addresses from being reused.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> held_;
};

}  // namespace trireme::internal
