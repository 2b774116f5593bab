#pragma once

#include <ATen/core/Tensor.h>

// Updates with sparse gradients, as operators of our own (namespace trireme). LibTorch has no fused
// kernels for them. They cannot be made of LibTorch's operators either: finding the distinct rows
// is data-dependent, which a graph does not allow. FTRL is here too, since LibTorch does not have
// it.
//
// Each changes the rows that the gradient has entries for, and their state, and leaves all other
// rows alone. Weight decay applies to these rows too, once for each update, however many entries a
// row has. A sparse gradient must have one sparse dimension.
namespace trireme::internal {

// Registers the operators with LibTorch. A process that runs graphs from elsewhere must call it
// first; the functions below call it themselves. Thread-safe.
void register_row_updates();

// `momentum_buffer` may be undefined if there is no momentum.
void sgd_rows(const at::Tensor& parameter, const at::Tensor& momentum_buffer,
              const at::Tensor& gradient, const at::Tensor& lr, double momentum, bool nesterov,
              double weight_decay);
void adagrad_rows(const at::Tensor& parameter, const at::Tensor& sum, const at::Tensor& gradient,
                  const at::Tensor& step, const at::Tensor& lr, double lr_decay, double eps,
                  double weight_decay);
// `weight_decay` is added to the gradient, `decoupled_weight_decay` shrinks the rows directly.
void adam_rows(const at::Tensor& parameter, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
               const at::Tensor& gradient, const at::Tensor& step, const at::Tensor& lr,
               double beta1, double beta2, double eps, double weight_decay,
               double decoupled_weight_decay);
// `momentum_buffer` may be undefined if there is no momentum, `grad_avg` if it is not centered.
void rmsprop_rows(const at::Tensor& parameter, const at::Tensor& square_avg,
                  const at::Tensor& momentum_buffer, const at::Tensor& grad_avg,
                  const at::Tensor& gradient, const at::Tensor& lr, double alpha, double eps,
                  double momentum, double weight_decay);

// FTRL for a dense gradient, and for the rows of a sparse one.
void ftrl(const at::Tensor& parameter, const at::Tensor& accumulator, const at::Tensor& linear,
          const at::Tensor& gradient, const at::Tensor& lr, double lr_power, double l1, double l2);
void ftrl_rows(const at::Tensor& parameter, const at::Tensor& accumulator, const at::Tensor& linear,
               const at::Tensor& gradient, const at::Tensor& lr, double lr_power, double l1,
               double l2);

}  // namespace trireme::internal
