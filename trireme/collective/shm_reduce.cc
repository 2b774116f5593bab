#include "trireme/collective/shm_reduce.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>

// A call of one of LibTorch's operators takes about as long as adding 16 KiB. So the sums and means
// of the usual gradients have loops of their own, which work on chunks that fit into the first
// level of the cache. All else is left to LibTorch, in larger chunks.

namespace trireme::internal {
namespace {

constexpr int64_t kLoopBytes = 16 << 10;
constexpr int64_t kOperatorBytes = 64 << 10;
constexpr int64_t kOperatorElements = 16
                                      << 10;  // LibTorch would use its threads for more than 32768

template <typename T>
void add_values(T* __restrict sum, const T* __restrict values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += values[i];
}

template <typename T>
void divide_values(T* sum, int64_t count, T divisor) {
  for (int64_t i = 0; i < count; ++i) sum[i] /= divisor;
}

bool has_loop(const CollectiveCall& call) {
  const at::ScalarType dtype = call.input.scalar_type();
  return (call.reduction == Reduction::kSum || call.reduction == Reduction::kMean) &&
         (dtype == at::kFloat || dtype == at::kDouble);
}

at::Tensor values_at(const CollectiveCall& call, const std::byte* data, int64_t bytes) {
  return at::from_blob(const_cast<std::byte*>(data),
                       {bytes / static_cast<int64_t>(call.input.element_size())},
                       at::TensorOptions(call.input.scalar_type()));
}

}  // namespace

int64_t shm_chunk_bytes(const CollectiveCall& call) {
  if (has_loop(call)) return kLoopBytes;
  return std::min<int64_t>(kOperatorBytes, kOperatorElements * call.input.element_size());
}

void accumulate_values(const CollectiveCall& call, std::byte* sum, const std::byte* values,
                       int64_t bytes) {
  if (!has_loop(call)) {
    const at::Tensor result = values_at(call, sum, bytes);
    combine(call.reduction, result, values_at(call, values, bytes), result);
  } else if (call.input.scalar_type() == at::kFloat) {
    add_values(reinterpret_cast<float*>(sum), reinterpret_cast<const float*>(values), bytes / 4);
  } else {
    add_values(reinterpret_cast<double*>(sum), reinterpret_cast<const double*>(values), bytes / 8);
  }
}

void finish_values(const CollectiveCall& call, std::byte* sum, int64_t bytes, int ranks) {
  if (call.reduction != Reduction::kMean) return;
  if (!has_loop(call)) {
    finish_mean(call.reduction, values_at(call, sum, bytes), ranks);
  } else if (call.input.scalar_type() == at::kFloat) {
    divide_values(reinterpret_cast<float*>(sum), bytes / 4, static_cast<float>(ranks));
  } else {
    divide_values(reinterpret_cast<double*>(sum), bytes / 8, static_cast<double>(ranks));
  }
}

}  // namespace trireme::internal
