#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <type_traits>
#include <utility>

namespace trireme {

// A loss, made implicitly: of a torch loss module, such as torch::nn::CrossEntropyLoss, or of a
// function that takes an output and a target.
//
//   .loss = torch::nn::CrossEntropyLoss()
//   .loss = [](const torch::Tensor& output, const torch::Tensor& target) {
//     return (output - target).square().mean(1);
//   }
//
// It returns one number for each example, or their mean as a single number. Weights of examples
// need the first form; a torch module whose options have a `reduction` is asked for it.
class Loss {
 public:
  // A function of an output and a target.
  using Values = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

  // Stands for no loss.
  Loss() = default;
  // Stands for a function, or a holder or shared pointer of a loss module. Throws Error for a
  // module that returns the sum over a batch (torch::kSum).
  template <typename F>
    requires(!std::same_as<std::decay_t<F>, Loss>)
  Loss(F loss);  // NOLINT

  // Returns true if it stands for no loss.
  bool empty() const { return values_ == nullptr; }
  // Returns what the function or the module returns.
  at::Tensor operator()(const at::Tensor& output, const at::Tensor& target) const {
    return values_(output, target);
  }
  // Returns one number for each example if the loss can tell, and otherwise their mean.
  at::Tensor per_example(const at::Tensor& output, const at::Tensor& target) const {
    return (per_example_ ? per_example_ : values_)(output, target);
  }

 private:
  Values values_;
  Values per_example_;  // null if it is the same
};

}  // namespace trireme

#include "trireme/model/loss_inl.h"
