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

template <typename R, typename... Args>
Dataset Dataset::map(const Function<R(Args...)>& function) const {
  static_assert((std::is_same_v<std::decay_t<Args>, at::Tensor> && ...),
                "the function of a map takes the tensors of an element");
  return map_graphs(sizeof...(Args), [&](const std::vector<at::Tensor>& element) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return function.graph(element[I]...);
    }(std::index_sequence_for<Args...>());
  });
}

template <typename F>
Dataset Dataset::map(F function) const {
  return map(trireme::function("map", std::move(function)));
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
