#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/data/element.h"
#include "trireme/function/structure.h"

namespace trireme {

// Draws the elements of a dataset one after the other, each of them once. A handle: copies draw
// from the same place. Any number of threads may draw at once.
//
//   tr::Iterator batches = dataset.iterator();
//   auto [x, y] = batches.next<2>();
//
// A captured function draws from iterators that are its arguments:
//
//   auto add = tr::function("add", [&](tr::Iterator& numbers) { sum.assign_add(numbers.next()); });
//   add(numbers);
class Iterator {
 public:
  explicit Iterator(std::shared_ptr<internal::ElementSource> source) : source_(std::move(source)) {}

  // Stands for an iterator on a worker, when a function is prepared to run there: gives these
  // examples, at least one, and then the last again. The step tells how many elements it draws from
  // the resource and which of its inputs they are (internal::Draw). For one call of one function.
  static Iterator placeholder(std::vector<internal::Element> examples, uint64_t resource);

  // The next element: of one tensor, or of N. Throws Error, at the end with END_OF_DATA.
  at::Tensor next() { return take(1)[0]; }
  template <size_t N>
  std::array<at::Tensor, N> next() {
    std::array<at::Tensor, N> tensors;
    std::ranges::move(take(N), tensors.begin());
    return tensors;
  }
  // Nothing at the end. Not for captured functions: a graph cannot tell when that will be.
  std::optional<std::vector<at::Tensor>> next_optional();

  // What it draws from, for people: "iterator over range(1, 6)".
  std::string name() const { return source_->name(); }
  const std::shared_ptr<internal::ElementSource>& source() const { return source_; }

 private:
  std::vector<at::Tensor> draw();
  std::vector<at::Tensor> take(size_t tensors);

  std::shared_ptr<internal::ElementSource> source_;
};

template <>
struct Structure<Iterator> {
  static constexpr bool kTensorsOnly = false;
  static void flatten(const Iterator& value, internal::Flattened& out) {
    out.signature += "iterator ";
    out.signature += std::to_string(out.add_source(value.source()));
  }
  static Iterator replace(const Iterator& value, internal::TensorCursor& reader) {
    return Iterator(reader.drawn_from(value.source()));
  }
};

}  // namespace trireme
