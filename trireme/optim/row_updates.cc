// Each kernel follows the same pattern: coalesce the gradient, which adds up the entries of each
// row; gather the touched rows of parameter and state; apply the dense rule to them; and write the
// rows back. The cost depends on the number of touched rows, not on the size of the table. Nothing
// is written back before all is computed, so an error, such as a lack of memory, changes nothing.
//
// The operators are registered as CompositeExplicitAutograd, so one implementation serves all
// backends and a capture records them as a single node. Inside, they may read numbers from tensors
// (item()), since that happens anew in each replay.
#include "trireme/optim/row_updates.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <cmath>
#include <optional>

namespace trireme::internal {
namespace {

using at::Tensor;

// The rows that a gradient touches, each once, with the sum of its entries.
struct Rows {
  explicit Rows(const Tensor& gradient) {
    TORCH_CHECK(gradient.is_sparse() && gradient.sparse_dim() == 1,
                "a row update needs a sparse gradient with one sparse dimension");
    const Tensor coalesced = gradient.coalesce();
    ids = coalesced._indices().select(0, 0);
    values = coalesced._values();
  }
  // Adds the gradient of an L2 penalty on these rows of the parameter.
  void add_decay(const Tensor& parameter, double weight_decay) {
    if (weight_decay != 0) values = values.add(of(parameter), weight_decay);
  }
  // Returns a copy of these rows of `whole`.
  Tensor of(const Tensor& whole) const { return whole.index_select(0, ids); }
  // Writes `rows` to these rows of `whole`.
  void put(const Tensor& whole, const Tensor& rows) const {
    Tensor(whole).index_copy_(0, ids, rows);
  }

  Tensor ids, values;
};

void sgd(Tensor self, const std::optional<Tensor>& buffer, const Tensor& gradient, const Tensor& lr,
         double momentum, bool nesterov, double weight_decay) {
  Rows rows(gradient);
  rows.add_decay(self, weight_decay);
  Tensor delta = rows.values, average;
  if (buffer && buffer->defined()) {
    average = rows.of(*buffer).mul_(momentum).add_(delta);
    delta = nesterov ? delta.add(average, momentum) : average;
  }
  const Tensor parameters = rows.of(self).sub_(delta.mul(lr));
  if (average.defined()) rows.put(*buffer, average);
  rows.put(self, parameters);
}

void adagrad(Tensor self, Tensor sum, const Tensor& gradient, const Tensor& step, const Tensor& lr,
             double lr_decay, double eps, double weight_decay) {
  Rows rows(gradient);
  rows.add_decay(self, weight_decay);
  const Tensor squares = rows.of(sum).addcmul_(rows.values, rows.values);
  const double rate = lr.item<double>() / (1 + (step.item<double>() - 1) * lr_decay);
  const Tensor parameters = rows.of(self).addcdiv_(rows.values, squares.sqrt().add_(eps), -rate);
  rows.put(sum, squares);
  rows.put(self, parameters);
}

void adam(Tensor self, Tensor exp_avg, Tensor exp_avg_sq, const Tensor& gradient,
          const Tensor& step, const Tensor& lr, double beta1, double beta2, double eps,
          double weight_decay, double decoupled_weight_decay) {
  Rows rows(gradient);
  rows.add_decay(self, weight_decay);
  const double count = step.item<double>(), rate = lr.item<double>();
  const double correction1 = 1 - std::pow(beta1, count), correction2 = 1 - std::pow(beta2, count);
  const Tensor mean = rows.of(exp_avg).lerp_(rows.values, 1 - beta1);
  const Tensor square =
      rows.of(exp_avg_sq).mul_(beta2).addcmul_(rows.values, rows.values, 1 - beta2);
  Tensor parameters = rows.of(self);
  if (decoupled_weight_decay != 0) parameters.mul_(1 - rate * decoupled_weight_decay);
  const Tensor denominator = square.sqrt().div_(std::sqrt(correction2)).add_(eps);
  parameters.addcdiv_(mean, denominator, -rate / correction1);
  rows.put(exp_avg, mean);
  rows.put(exp_avg_sq, square);
  rows.put(self, parameters);
}

void rmsprop(Tensor self, Tensor square_avg, const std::optional<Tensor>& buffer,
             const std::optional<Tensor>& grad_avg, const Tensor& gradient, const Tensor& lr,
             double alpha, double eps, double momentum, double weight_decay) {
  Rows rows(gradient);
  rows.add_decay(self, weight_decay);
  const Tensor square =
      rows.of(square_avg).mul_(alpha).addcmul_(rows.values, rows.values, 1 - alpha);
  Tensor denominator = square, mean;
  if (grad_avg && grad_avg->defined()) {
    mean = rows.of(*grad_avg).lerp_(rows.values, 1 - alpha);
    denominator = square.addcmul(mean, mean, -1);
  }
  Tensor delta = rows.values.div(denominator.sqrt().add_(eps));
  const bool has_momentum = buffer && buffer->defined();
  if (has_momentum) delta = rows.of(*buffer).mul_(momentum).add_(delta);
  const Tensor parameters = rows.of(self).sub_(delta.mul(lr));
  rows.put(square_avg, square);
  if (mean.defined()) rows.put(*grad_avg, mean);
  if (has_momentum) rows.put(*buffer, delta);
  rows.put(self, parameters);
}

// New values of the parameter and its state.
struct FtrlResult {
  Tensor parameter, accumulator, linear;
};

FtrlResult ftrl_step(const Tensor& parameter, const Tensor& accumulator, const Tensor& linear,
                     const Tensor& gradient, double lr, double lr_power, double l1, double l2) {
  FtrlResult result;
  result.accumulator = accumulator.addcmul(gradient, gradient);
  const Tensor power = result.accumulator.pow(-lr_power);
  const Tensor sigma = power.sub(accumulator.pow(-lr_power)).div_(lr);
  result.linear = linear.add(gradient).addcmul_(sigma, parameter, -1);
  // L1 regularisation makes the parameter zero where |linear| <= l1.
  const Tensor shrunk = result.linear.clamp(-l1, l1).sub_(result.linear);
  result.parameter = shrunk.div_(power.div(lr).add_(2 * l2));
  return result;
}

void ftrl_dense(Tensor self, Tensor accumulator, Tensor linear, const Tensor& gradient,
                const Tensor& lr, double lr_power, double l1, double l2) {
  const FtrlResult result =
      ftrl_step(self, accumulator, linear, gradient, lr.item<double>(), lr_power, l1, l2);
  self.copy_(result.parameter);
  accumulator.copy_(result.accumulator);
  linear.copy_(result.linear);
}

void ftrl_sparse(Tensor self, Tensor accumulator, Tensor linear, const Tensor& gradient,
                 const Tensor& lr, double lr_power, double l1, double l2) {
  const Rows rows(gradient);
  const FtrlResult result = ftrl_step(rows.of(self), rows.of(accumulator), rows.of(linear),
                                      rows.values, lr.item<double>(), lr_power, l1, l2);
  rows.put(self, result.parameter);
  rows.put(accumulator, result.accumulator);
  rows.put(linear, result.linear);
}

// Calls an operator through the dispatcher, so that a capture sees it.
template <typename... Args>
void call(const char* name, Args... args) {
  register_row_updates();
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<void(Args...)>().call(args...);
}

// Returns nullopt for an undefined tensor.
std::optional<Tensor> optional(const Tensor& tensor) {
  return tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt;
}

}  // namespace

void register_row_updates() {
  static const auto* library = [] {
    auto* made =
        new torch::Library(torch::Library::FRAGMENT, "trireme", std::nullopt, __FILE__, __LINE__);
    const auto define = [&](const char* schema, auto kernel) {
      made->def(schema, torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                        torch::CppFunction(kernel)));
    };
    define(
        "sgd_rows_(Tensor(a!) self, Tensor(b!)? momentum_buffer, Tensor gradient, Tensor lr, "
        "float momentum, bool nesterov, float weight_decay) -> ()",
        TORCH_FN(sgd));
    define(
        "adagrad_rows_(Tensor(a!) self, Tensor(b!) sum, Tensor gradient, Tensor step, "
        "Tensor lr, float lr_decay, float eps, float weight_decay) -> ()",
        TORCH_FN(adagrad));
    define(
        "adam_rows_(Tensor(a!) self, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, "
        "Tensor gradient, Tensor step, Tensor lr, float beta1, float beta2, float eps, "
        "float weight_decay, float decoupled_weight_decay) -> ()",
        TORCH_FN(adam));
    define(
        "rmsprop_rows_(Tensor(a!) self, Tensor(b!) square_avg, Tensor(c!)? momentum_buffer, "
        "Tensor(d!)? grad_avg, Tensor gradient, Tensor lr, float alpha, float eps, "
        "float momentum, float weight_decay) -> ()",
        TORCH_FN(rmsprop));
    define(
        "ftrl_(Tensor(a!) self, Tensor(b!) accumulator, Tensor(c!) linear, Tensor gradient, "
        "Tensor lr, float lr_power, float l1, float l2) -> ()",
        TORCH_FN(ftrl_dense));
    define(
        "ftrl_rows_(Tensor(a!) self, Tensor(b!) accumulator, Tensor(c!) linear, Tensor gradient, "
        "Tensor lr, float lr_power, float l1, float l2) -> ()",
        TORCH_FN(ftrl_sparse));
    return made;
  }();
  (void)library;
}

void sgd_rows(const Tensor& parameter, const Tensor& momentum_buffer, const Tensor& gradient,
              const Tensor& lr, double momentum, bool nesterov, double weight_decay) {
  call<Tensor, const std::optional<Tensor>&, const Tensor&, const Tensor&, double, bool, double>(
      "trireme::sgd_rows_", parameter, optional(momentum_buffer), gradient, lr, momentum, nesterov,
      weight_decay);
}

void adagrad_rows(const Tensor& parameter, const Tensor& sum, const Tensor& gradient,
                  const Tensor& step, const Tensor& lr, double lr_decay, double eps,
                  double weight_decay) {
  call<Tensor, Tensor, const Tensor&, const Tensor&, const Tensor&, double, double, double>(
      "trireme::adagrad_rows_", parameter, sum, gradient, step, lr, lr_decay, eps, weight_decay);
}

void adam_rows(const Tensor& parameter, const Tensor& exp_avg, const Tensor& exp_avg_sq,
               const Tensor& gradient, const Tensor& step, const Tensor& lr, double beta1,
               double beta2, double eps, double weight_decay, double decoupled_weight_decay) {
  call<Tensor, Tensor, Tensor, const Tensor&, const Tensor&, const Tensor&, double, double, double,
       double, double>("trireme::adam_rows_", parameter, exp_avg, exp_avg_sq, gradient, step, lr,
                       beta1, beta2, eps, weight_decay, decoupled_weight_decay);
}

void rmsprop_rows(const Tensor& parameter, const Tensor& square_avg, const Tensor& momentum_buffer,
                  const Tensor& grad_avg, const Tensor& gradient, const Tensor& lr, double alpha,
                  double eps, double momentum, double weight_decay) {
  call<Tensor, Tensor, const std::optional<Tensor>&, const std::optional<Tensor>&, const Tensor&,
       const Tensor&, double, double, double, double>(
      "trireme::rmsprop_rows_", parameter, square_avg, optional(momentum_buffer),
      optional(grad_avg), gradient, lr, alpha, eps, momentum, weight_decay);
}

void ftrl(const Tensor& parameter, const Tensor& accumulator, const Tensor& linear,
          const Tensor& gradient, const Tensor& lr, double lr_power, double l1, double l2) {
  call<Tensor, Tensor, Tensor, const Tensor&, const Tensor&, double, double, double>(
      "trireme::ftrl_", parameter, accumulator, linear, gradient, lr, lr_power, l1, l2);
}

void ftrl_rows(const Tensor& parameter, const Tensor& accumulator, const Tensor& linear,
               const Tensor& gradient, const Tensor& lr, double lr_power, double l1, double l2) {
  call<Tensor, Tensor, Tensor, const Tensor&, const Tensor&, double, double, double>(
      "trireme::ftrl_rows_", parameter, accumulator, linear, gradient, lr, lr_power, l1, l2);
}

}  // namespace trireme::internal
