#pragma once

#include <torch/enum.h>

#include <memory>
#include <variant>

#include "trireme/base/error.h"
#include "trireme/model/loss.h"

namespace trireme {
namespace internal {

// A holder of a loss module, or a shared pointer to one.
template <typename F>
concept LossModule = requires(F& loss, const at::Tensor& tensor) {
  { loss->forward(tensor, tensor) } -> std::convertible_to<at::Tensor>;
};

// A loss module that can tell the losses of examples: a copy of it is asked to reduce nothing.
template <typename Module>
concept Reduces = std::copy_constructible<Module> &&
                  requires(Module& module) { module.options.reduction(torch::kNone); };

// Returns true if a variant of LibTorch's enumerators has this one.
template <typename Kind, typename Reduction>
bool is_reduction(const Reduction& reduction) {
  return std::visit(
      [](const auto& kind) { return std::is_same_v<std::decay_t<decltype(kind)>, Kind>; },
      reduction);
}

// Returns one number for each example, whose elements are in the axes after the first.
inline at::Tensor reduce_examples(const at::Tensor& losses, bool by_sum) {
  if (losses.dim() <= 1) return losses;
  const at::Tensor rows = losses.flatten(1);
  return by_sum ? rows.sum(1) : rows.mean(1);
}

}  // namespace internal

template <typename F>
  requires(!std::same_as<std::decay_t<F>, Loss>)
Loss::Loss(F loss) {
  if constexpr (internal::LossModule<F>) {
    if (!loss) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the loss is a holder without a module; make it with torch::nn's constructor");
    }
    using Module = std::decay_t<decltype(*loss)>;
    if constexpr (internal::Reduces<Module>) {
      const auto& reduction = loss->options.reduction();
      if (internal::is_reduction<torch::enumtype::kSum>(reduction)) {
        throw Error(ErrorCode::kInvalidArgument,
                    "the loss has the reduction torch::kSum, but the loss of a batch is the mean "
                    "over its examples, so that it does not depend on their number; use "
                    "torch::kMean or torch::kNone");
      }
      const bool by_sum = internal::is_reduction<torch::enumtype::kBatchMean>(reduction);
      auto each = std::make_shared<Module>(*loss);
      each->options.reduction(torch::kNone);
      per_example_ = [each, by_sum](const at::Tensor& output, const at::Tensor& target) {
        return internal::reduce_examples(each->forward(output, target), by_sum);
      };
    }
    values_ = [loss](const at::Tensor& output, const at::Tensor& target) mutable -> at::Tensor {
      return loss->forward(output, target);
    };
  } else {
    static_assert(
        std::is_invocable_r_v<at::Tensor, F&, const at::Tensor&, const at::Tensor&>,
        "a loss is a torch loss module, or a function of an output and a target to a tensor");
    values_ = std::move(loss);
  }
}

}  // namespace trireme
