#pragma once

// The templates of model.h, which includes this file.

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/function/structure.h"
#include "trireme/model/model.h"

namespace trireme {
namespace internal {

// Calls forward() of a module with N tensors, each an argument. `outputs` gets the tensors that it
// returns. Returns false if forward() does not take N tensors.
template <size_t N, typename Module>
bool forward_separate(Module& module, const std::vector<at::Tensor>& inputs, Flattened& outputs) {
  return [&]<size_t... I>(std::index_sequence<I...>) {
    if constexpr (requires { module.forward(inputs[I]...); }) {
      auto result = module.forward(inputs[I]...);
      Structure<decltype(result)>::flatten(result, outputs);
      return true;
    } else {
      return false;
    }
  }(std::make_index_sequence<N>());
}

// Calls forward() of a module with any number of tensors, as one argument.
template <typename Module>
bool forward_together(Module& module, const std::vector<at::Tensor>& inputs, Flattened& outputs) {
  if constexpr (requires { module.forward(inputs); }) {
    auto result = module.forward(inputs);
    Structure<decltype(result)>::flatten(result, outputs);
    return true;
  } else {
    return false;
  }
}

// Returns the tensors that forward() of a module returns, in their order. Throws Error if it does
// not take this number of tensors.
template <typename Module>
std::vector<at::Tensor> forward_any(Module& module, const std::vector<at::Tensor>& inputs) {
  Flattened outputs;
  const bool called = (inputs.size() == 1 && forward_separate<1>(module, inputs, outputs)) ||
                      (inputs.size() == 2 && forward_separate<2>(module, inputs, outputs)) ||
                      (inputs.size() == 3 && forward_separate<3>(module, inputs, outputs)) ||
                      (inputs.size() == 4 && forward_separate<4>(module, inputs, outputs)) ||
                      forward_together(module, inputs, outputs);
  if (called) return std::move(outputs.tensors);
  throw Error(
      ErrorCode::kInvalidArgument,
      "forward() of the net does not take " + std::to_string(inputs.size()) +
          (inputs.size() == 1 ? " tensor" : " tensors") +
          "; give it this number of tensors, or a std::vector of tensors, or tell compile() "
          "by .inputs how many tensors of a batch are inputs");
}

// Returns the module of a holder or shared pointer.
template <typename Net>
std::shared_ptr<torch::nn::Module> module_of(const Net& net) {
  if constexpr (requires { net.ptr(); }) {
    return net.ptr();
  } else {
    return net;
  }
}

}  // namespace internal

template <internal::ModulePointer Net>
Model<Net>::Model(Net net, const Strategy& strategy)
    : ModelBase(
          internal::module_of(net),
          [net](const std::vector<at::Tensor>& inputs) mutable {
            return internal::forward_any(*net, inputs);
          },
          strategy),
      net_(std::move(net)) {}

}  // namespace trireme
