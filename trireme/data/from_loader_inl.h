#pragma once

// The templates of from_loader.h, which includes this file.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/data/from_loader.h"

namespace trireme {
namespace internal {

// Calls a function that draws from LibTorch's default generator, which is seeded for the call and
// gets its state back afterwards.
void call_seeded(uint64_t seed, const std::function<void()>& function);

// Returns the tensors of a batch of a loader.
template <typename Batch>
std::vector<at::Tensor> tensors_of_batch(const Batch& batch) {
  if constexpr (std::is_convertible_v<const Batch&, at::Tensor>) {
    return {batch};
  } else if constexpr (std::is_convertible_v<const Batch&, std::vector<at::Tensor>>) {
    return batch;
  } else {
    static_assert(
        requires { at::Tensor(batch.data); },
        "a batch of the loader is an example with a tensor `data`, a tensor or a vector "
        "of tensors; add .map(torch::data::transforms::Stack<>()) to the dataset");
    if constexpr (requires { at::Tensor(batch.target); }) {
      return {batch.data, batch.target};
    } else {
      return {batch.data};
    }
  }
}

}  // namespace internal

template <typename F>
NamedGenerator from_loader(std::string name, std::vector<Column> columns, F make) {
  const auto start = [make = std::move(make)](uint64_t seed) -> NextElement {
    using Loader = std::decay_t<decltype(*make())>;
    using Position = std::decay_t<decltype(std::declval<Loader&>().begin())>;
    struct Pass {
      std::shared_ptr<Loader> loader;
      std::optional<Position> position;
      bool is_first = true;
    };
    const auto pass = std::make_shared<Pass>();
    pass->loader = make();
    // The sampler draws the order of the examples here.
    internal::call_seeded(seed, [&] { pass->position.emplace(pass->loader->begin()); });
    return [pass]() -> std::optional<std::vector<at::Tensor>> {
      if (!std::exchange(pass->is_first, false)) ++*pass->position;
      if (*pass->position == pass->loader->end()) return std::nullopt;
      return internal::tensors_of_batch(**pass->position);
    };
  };
  return generator(std::move(name), std::move(columns), start);
}

}  // namespace trireme
