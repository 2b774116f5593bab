#pragma once

#include <ATen/core/Tensor.h>

// Updates by sparse gradients, as operators of our own (namespace trireme): LibTorch has no fused
// kernels for them, and what is inside, finding the distinct rows, is data-dependent and so must
// not show in a graph.
namespace trireme::internal {

// Makes the operators known to LibTorch. Whoever runs graphs that others captured calls it once;
// the functions below do so themselves.
void register_row_updates();

// `momentum_buffer` may be undefined.
void sgd_rows(const at::Tensor& parameter, const at::Tensor& momentum_buffer,
              const at::Tensor& gradient, const at::Tensor& lr, double momentum, bool nesterov);
void adagrad_rows(const at::Tensor& parameter, const at::Tensor& sum, const at::Tensor& gradient,
                  const at::Tensor& step, const at::Tensor& lr, double lr_decay, double eps);
void adam_rows(const at::Tensor& parameter, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
               const at::Tensor& gradient, const at::Tensor& step, const at::Tensor& lr,
               double beta1, double beta2, double eps, double decoupled_weight_decay);
// `momentum_buffer` and `grad_avg` may be undefined.
void rmsprop_rows(const at::Tensor& parameter, const at::Tensor& square_avg,
                  const at::Tensor& momentum_buffer, const at::Tensor& grad_avg,
                  const at::Tensor& gradient, const at::Tensor& lr, double alpha, double eps,
                  double momentum);

// The same for all rows, and for those of a sparse gradient.
void ftrl(const at::Tensor& parameter, const at::Tensor& accumulator, const at::Tensor& linear,
          const at::Tensor& gradient, const at::Tensor& lr, double lr_power, double l1, double l2);
void ftrl_rows(const at::Tensor& parameter, const at::Tensor& accumulator, const at::Tensor& linear,
               const at::Tensor& gradient, const at::Tensor& lr, double lr_power, double l1,
               double l2);

}  // namespace trireme::internal
