#include "trireme/capture/scratch.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/roll.h>

#include <cstring>

#include "trireme/capture/memory_lock.h"

namespace trireme::internal {
namespace {

// Returns the number of elements from the first to the last one in memory, gaps included.
int64_t extent(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) == 0) return 0;
    last += (tensor.size(i) - 1) * tensor.stride(i);
  }
  return last + 1;
}

// Returns the memory that the copy covers as a one-dimensional tensor.
at::Tensor row_of(const at::Tensor& copy) {
  return at::as_strided(copy, {extent(copy)}, {1}, copy.storage_offset());
}

}  // namespace

at::Tensor scratch_copy(const at::Tensor& tensor) {
  const at::NoGradGuard no_gradients;
  const at::Tensor source = tensor.detach();
  const at::Tensor row = at::empty({extent(source)}, source.options());
  if (row.numel() == 0) {
    // An empty tensor has no memory to copy.
  } else if (source.device().is_cpu()) {
    const size_t itemsize = row.dtype().itemsize();
    // The memory of a variable that lives on a server is locked.
    const void* storage = locked_data(*source.storage().unsafeGetStorageImpl());
    std::memcpy(row.mutable_data_ptr(),
                static_cast<const char*>(storage) + source.storage_offset() * itemsize,
                row.numel() * itemsize);
  } else {
    row.copy_(row_of(source));
  }
  at::Tensor copy = at::as_strided(row, source.sizes(), source.strides(), 0);
  // LibTorch does not let requires_grad_() change a view, so detach from `row`.
  copy = copy.detach();
  copy.requires_grad_(tensor.requires_grad());
  return copy;
}

void perturb_argument(at::Tensor& copy, int perturbation) {
  if (copy.numel() == 0 || perturbation == 0) return;
  const at::NoGradGuard no_gradients;
  at::Tensor row = row_of(copy.detach());
  row.copy_(perturbation == 1 ? at::roll(row, {1}, {0}) : at::flip(row, {0}));
  if (copy.is_floating_point() || copy.is_complex()) {
    // Flipping the sign and the order changes comparisons with zero and between elements.
    row.mul_(perturbation == 1 ? 63.0 / 64.0 : -1.0);
  } else if (copy.scalar_type() != at::kBool && row.min().equal(row.max())) {
    row.add_(perturbation);
  }
}

void perturb_variable(at::Tensor& copy, int perturbation) {
  if (copy.numel() == 0 || copy.scalar_type() == at::kBool || perturbation == 0) return;
  const at::NoGradGuard no_gradients;
  at::Tensor row = row_of(copy.detach());
  if (copy.is_floating_point() || copy.is_complex()) {
    row.mul_(1.0 - perturbation / 64.0).add_(perturbation / 1024.0);
  } else {
    row.add_(perturbation);
  }
}

}  // namespace trireme::internal
