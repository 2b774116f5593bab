#include "trireme/optim/clipping.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/stack.h>

namespace trireme {

using at::Tensor;

Tensor clip_grad_norm(std::vector<Tensor>& gradients, double max_norm) {
  const at::NoGradGuard no_gradients;
  std::vector<Tensor> dense, norms;
  for (const Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    gradient.is_sparse() ? norms.push_back(gradient.norm()) : dense.push_back(gradient);
  }
  for (Tensor& norm : dense.empty() ? dense : at::_foreach_norm(dense, 2)) norms.push_back(norm);
  if (norms.empty()) return at::full({}, 0.0);
  const Tensor total = at::linalg_vector_norm(at::stack(norms));
  const Tensor scale = total.add(1e-6).reciprocal_().mul_(max_norm).clamp_max_(1.0);
  // Not in place, since one tensor may be the gradient of two variables.
  for (Tensor& gradient : gradients) {
    if (gradient.defined()) gradient = gradient.mul(scale);
  }
  return total;
}

void clip_each_grad_norm(std::vector<Tensor>& gradients, double max_norm) {
  for (Tensor& gradient : gradients) {
    std::vector<Tensor> one{gradient};
    clip_grad_norm(one, max_norm);
    gradient = one[0];
  }
}

void clip_grad_value(std::vector<Tensor>& gradients, double limit) {
  const at::NoGradGuard no_gradients;
  for (Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    if (!gradient.is_sparse()) {
      gradient = gradient.clamp(-limit, limit);
      continue;
    }
    // A sparse tensor may hold an element in several parts. The limit is for their sum.
    const Tensor sum = gradient.coalesce();
    gradient = at::sparse_coo_tensor(sum._indices(), sum._values().clamp(-limit, limit),
                                     sum.sizes(), sum.options(), /*is_coalesced=*/true);
  }
}

}  // namespace trireme
