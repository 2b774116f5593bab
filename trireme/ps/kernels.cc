#include "trireme/ps/kernels.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>

#include "trireme/base/sanitizer.h"

namespace trireme::internal {
namespace {

// Compiles a function for several instruction sets. When the program is loaded, it picks the widest
// one that the processor has. Not used under sanitizers, which are not initialised by then.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(TRIREME_ASAN) && !defined(TRIREME_TSAN)
#define TRIREME_TARGET_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TRIREME_TARGET_CLONES
#endif

// Adds `count` elements. memcpy, since `delta` may be unaligned; compilers turn it into plain
// loads.
template <typename T>
inline __attribute__((always_inline)) void add_loop(T* __restrict target,
                                                    const void* __restrict delta, int64_t count) {
  const char* next = static_cast<const char*>(delta);
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, next + i * sizeof(T), sizeof(T));
    target[i] += value;
  }
}

TRIREME_TARGET_CLONES void add(float* target, const void* delta, int64_t count) {
  add_loop(target, delta, count);
}
TRIREME_TARGET_CLONES void add(double* target, const void* delta, int64_t count) {
  add_loop(target, delta, count);
}
TRIREME_TARGET_CLONES void add(uint64_t* target, const void* delta, int64_t count) {
  add_loop(target, delta, count);
}
TRIREME_TARGET_CLONES void add(uint32_t* target, const void* delta, int64_t count) {
  add_loop(target, delta, count);
}

// Adds the elements of all pieces. A piece may end anywhere, so an element can be cut into two or
// more pieces. Its bytes are collected in `cut` and added when it is complete; the elements between
// are added straight from the piece.
template <typename T>
void add_pieces(T* target, const ScatteredTensor& delta) {
  char cut[sizeof(T)];
  size_t have = 0;  // number of bytes in `cut`
  for (ScatteredTensor::Piece piece : delta.pieces()) {
    const auto move_to_cut = [&](size_t bytes) {
      std::memcpy(cut + have, piece.data, bytes);
      have += bytes;
      piece.data += bytes;
      piece.size -= bytes;
    };
    if (have > 0) {
      move_to_cut(std::min(sizeof(T) - have, piece.size));
      if (have < sizeof(T)) continue;
      add(target++, cut, 1);
      have = 0;
    }
    const size_t whole = piece.size / sizeof(T);
    add(target, piece.data, whole);
    target += whole;
    piece.data += whole * sizeof(T);
    piece.size -= whole * sizeof(T);
    move_to_cut(piece.size);
  }
}

// Calls `body` with a null pointer of the element type and returns true, if this file has a loop
// for the dtype. Returns false otherwise; then LibTorch has to do the work.
template <typename Body>
bool with_type(c10::ScalarType dtype, const Body& body) {
  switch (dtype) {
    case c10::kFloat:
      body(static_cast<float*>(nullptr));
      return true;
    case c10::kDouble:
      body(static_cast<double*>(nullptr));
      return true;
    case c10::kLong:  // added as unsigned numbers, whose overflow is defined
      body(static_cast<uint64_t*>(nullptr));
      return true;
    case c10::kInt:
      body(static_cast<uint32_t*>(nullptr));
      return true;
    default:
      return false;
  }
}

template <typename T>
T* data(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

}  // namespace

size_t row_bytes(const at::Tensor& tensor) {
  return tensor.dim() == 0 || tensor.size(0) == 0 ? 0 : tensor.nbytes() / tensor.size(0);
}

void add_in_place(const at::Tensor& target, const at::Tensor& delta) {
  const bool done = with_type(target.scalar_type(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    add(data<T>(target), data<T>(delta), target.numel());
  });
  if (!done) {
    const at::NoGradGuard no_gradients;
    at::Tensor(target).add_(delta);
  }
}

void add_in_place(const at::Tensor& target, const ScatteredTensor& delta) {
  const bool done = with_type(target.scalar_type(), [&](auto* type) {
    add_pieces(data<std::remove_pointer_t<decltype(type)>>(target), delta);
  });
  TORCH_CHECK(done, "pieces of this dtype cannot be added");
}

bool adds_pieces(c10::ScalarType dtype) {
  return with_type(dtype, [](auto*) {});
}

bool can_add(c10::ScalarType dtype) {
  if (adds_pieces(dtype)) return true;
  // LibTorch does not say which dtypes its operators support, so a dtype is tried on its first use.
  // Two threads may do that at the same time, with the same result.
  enum Answer : char { kUnknown, kYes, kNo };
  static std::atomic<Answer> known[static_cast<size_t>(c10::ScalarType::NumOptions)] = {};
  std::atomic<Answer>& answer = known[static_cast<size_t>(dtype)];
  if (answer == kUnknown) {
    try {
      const at::Tensor rows = at::zeros({2, 1}, dtype);
      add_in_place(rows.clone(), rows);
      add_rows(rows.clone(), at::zeros({2}, c10::kLong), rows);
      answer = kYes;
    } catch (const std::exception&) {
      answer = kNo;
    }
  }
  return answer == kYes;
}

void assign(const at::Tensor& target, const at::Tensor& values) {
  std::memcpy(target.data_ptr(), values.const_data_ptr(), target.nbytes());
}

void add_rows(const at::Tensor& target, const at::Tensor& ids, const at::Tensor& rows) {
  const int64_t* id = data<int64_t>(ids);
  const bool done = with_type(target.scalar_type(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t width = row_bytes(target) / sizeof(T);
    for (int64_t i = 0; i < ids.numel(); ++i) {
      add(data<T>(target) + id[i] * width, data<T>(rows) + i * width, width);
    }
  });
  if (!done) {
    const at::NoGradGuard no_gradients;
    at::Tensor(target).index_add_(0, ids, rows);
  }
}

void assign_rows(const at::Tensor& target, const at::Tensor& ids, const at::Tensor& rows) {
  const size_t bytes = row_bytes(target);
  const int64_t* id = data<int64_t>(ids);
  for (int64_t i = 0; i < ids.numel(); ++i) {
    std::memcpy(data<char>(target) + id[i] * bytes, data<char>(rows) + i * bytes, bytes);
  }
}

void gather_rows(const at::Tensor& source, const at::Tensor& ids, void* out) {
  const size_t bytes = row_bytes(source);
  if (bytes == 0) return;
  const int64_t* id = data<int64_t>(ids);
  for (int64_t i = 0; i < ids.numel(); ++i) {
    std::memcpy(static_cast<char*>(out) + i * bytes, data<char>(source) + id[i] * bytes, bytes);
  }
}

}  // namespace trireme::internal
