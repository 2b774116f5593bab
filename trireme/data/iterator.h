#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/access.h"

namespace trireme {
namespace internal {
class ElementSource;
struct NumberedElement;
}  // namespace internal

// Draws the elements of a dataset one after the other. Copies of an iterator share its position, so
// that each element is drawn once. Thread-safe: any number of threads may draw at the same time.
//
//   tr::Iterator batches = dataset.iterator();
//   auto [x, y] = batches.next<2>();
//
// A captured function may draw from iterators that are its arguments. Every call draws new
// elements:
//
//   auto add = tr::function("add", [&](tr::Iterator& numbers) { sum.assign_add(numbers.next()); });
//   add(numbers);
class Iterator {
 public:
  // Returns the next element, which must have one tensor. Throws Error: with END_OF_DATA if there
  // are no more elements, or with INVALID_ARGUMENT if the element has another number of tensors.
  // Then the element is not lost; the next call returns it.
  at::Tensor next();
  // Returns the next element, which must have N tensors. Throws Error as next() does.
  template <size_t N>
  std::array<at::Tensor, N> next();
  // Returns the next element, with any number of tensors, or nullopt if there are no more.
  //
  // In a captured function it always returns an element, since a graph cannot depend on where the
  // data ends. If there are no more elements, a call of the function does nothing and returns a
  // result without tensors: an undefined tensor, or an empty vector. A closure of a coordinator
  // does nothing and has no value (RemoteValue::has_value). With next(), both throw END_OF_DATA.
  std::optional<std::vector<at::Tensor>> next_optional();

  // Returns a description of the iterator for messages, as "iterator over range(1, 6)".
  std::string name() const;

 private:
  friend struct internal::Access<Iterator>;
  explicit Iterator(std::shared_ptr<internal::ElementSource> source);

  internal::NumberedElement draw();
  // Throws Error if it stands for an iterator on a worker.
  void check_drawable() const;
  // Draws an element that must have this number of tensors.
  std::vector<at::Tensor> take(size_t tensors);

  std::shared_ptr<internal::ElementSource> source_;
};

}  // namespace trireme

#include "trireme/data/iterator_inl.h"
