#pragma once

// The templates of dataset.h, which includes this file.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/base/access.h"
#include "trireme/data/dataset.h"
#include "trireme/function/function.h"

namespace trireme {

namespace internal {

// Returns what captures the function for an element, given as its tensors.
template <typename R, typename... Args>
auto graph_function(const Function<R(Args...)>& function) {
  static_assert((std::is_same_v<std::decay_t<Args>, at::Tensor> && ...),
                "the function of a step takes the tensors of an element");
  return [&](const std::vector<at::Tensor>& element) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return function.graph(element[I]...);
    }(std::index_sequence_for<Args...>());
  };
}

template <typename R, typename... Args>
constexpr size_t argument_count(const Function<R(Args...)>&) {
  return sizeof...(Args);
}

}  // namespace internal

template <typename R, typename... Args>
Dataset Dataset::map(const Function<R(Args...)>& function, const MapOptions& options) const {
  return map_graphs(sizeof...(Args), internal::graph_function(function), options);
}

template <typename F>
Dataset Dataset::map(F function, const MapOptions& options) const {
  return map(trireme::function("map", std::move(function)), options);
}

template <typename F>
Dataset Dataset::filter(F function) const {
  const auto predicate = trireme::function("filter", std::move(function));
  return filter_graphs(internal::argument_count(predicate), internal::graph_function(predicate));
}

template <>
struct internal::Access<Dataset> {
  static Dataset make(std::shared_ptr<const DatasetStep> last) { return Dataset(std::move(last)); }
  // Returns the last step.
  static const std::shared_ptr<const DatasetStep>& last(const Dataset& dataset) {
    return dataset.last_;
  }
};

}  // namespace trireme
