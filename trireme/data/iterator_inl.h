#pragma once

// The templates of iterator.h, which includes this file. Structure<Iterator> lets functions take
// iterators as arguments: in a capture the iterator is replaced with one that gives the elements
// drawn for the step.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/access.h"
#include "trireme/data/iterator.h"
#include "trireme/function/draws.h"
#include "trireme/function/structure.h"

namespace trireme {
namespace internal {
class DatasetSource;
struct IteratorPosition;
}  // namespace internal

template <size_t N>
std::array<at::Tensor, N> Iterator::next() {
  std::array<at::Tensor, N> tensors;
  std::ranges::move(take(N), tensors.begin());
  return tensors;
}

template <>
struct internal::Access<Iterator> {
  static Iterator make(std::shared_ptr<ElementSource> source) {
    return Iterator(std::move(source));
  }
  // Returns an iterator that stands for one on a worker while a function is prepared to run there.
  // It gives the examples in turn, at least one, and then repeats the last. The prepared step says
  // how many elements it draws from `resource` and which of its inputs they are (Draw). Used for
  // one call of one function.
  static Iterator placeholder(std::vector<Element> examples, uint64_t resource);
  static const std::shared_ptr<ElementSource>& source(const Iterator& iterator) {
    return iterator.source_;
  }

  // The functions below are for iterators of Dataset::iterator(); they throw Error for others.

  // Returns the position, with the elements that were drawn and not put back as used.
  static IteratorPosition position(const Iterator& iterator);
  // Lets the iterator and its copies continue from a position of an iterator over the same dataset.
  static void restore(const Iterator& iterator, const IteratorPosition& position);
  // Returns how often restore() has changed the position of the iterator and its copies.
  static uint64_t restores(const Iterator& iterator);
  // Returns the dataset in readable form.
  static std::string describe(const Iterator& iterator);

 private:
  static DatasetSource& dataset_source(const Iterator& iterator);
};

template <>
struct Structure<Iterator> {
  static constexpr bool kTensorsOnly = false;
  static void flatten(const Iterator& value, internal::Flattened& out) {
    const auto& source = internal::Access<Iterator>::source(value);
    out.signature += "iterator ";
    out.signature += std::to_string(out.add_source(source));
  }
  static Iterator replace(const Iterator& value, internal::TensorCursor& reader) {
    const auto& source = internal::Access<Iterator>::source(value);
    return internal::Access<Iterator>::make(reader.drawn_from(source));
  }
};

}  // namespace trireme
