#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/data/element.h"
#include "trireme/data/iterator.h"
#include "trireme/function/function.h"

namespace trireme {
namespace internal {
struct DatasetStep;
}

struct BatchOptions {
  bool drop_remainder = false;  // of elements that do not fill the last batch
};

struct ShuffleOptions {
  std::optional<uint64_t> seed;  // else that of set_seed()
};

struct IteratorOptions {
  // Iterators with one seed over one dataset give the same; others shuffle differently.
  uint64_t seed = 0;
};

// Elements, each a list of tensors, and what is done to them on the way. Plain data: it is made in
// the program, and its iterators may be anywhere. Immutable; copies are cheap.
//
//   tr::Dataset batches = tr::Dataset::from_tensors({x, y}).shuffle(1000).repeat().batch(32);
//
// Each step throws Error, which names it, if it cannot be.
class Dataset {
 public:
  static constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

  // The numbers from begin up to, not including, end, as int64 scalars.
  static Dataset range(int64_t end);
  static Dataset range(int64_t begin, int64_t end, int64_t step = 1);
  // The rows along axis 0, which must be as many in each tensor. They are not copied, and elements
  // may be views of them: nobody may write to either.
  static Dataset from_tensors(std::vector<at::Tensor> tensors);
  explicit Dataset(std::shared_ptr<const internal::DatasetStep> last);

  // So many elements stacked; the last batch may be smaller.
  Dataset batch(int64_t size, const BatchOptions& options = {}) const;
  // Draws at random from a buffer that is kept full. One as large as the dataset shuffles it all;
  // with a smaller one no element comes earlier than by its size. Each repetition is shuffled anew.
  Dataset shuffle(int64_t buffer, const ShuffleOptions& options = {}) const;
  Dataset repeat(int64_t count = kForever) const;
  Dataset take(int64_t count) const;
  Dataset skip(int64_t count) const;
  // Elements as a function makes them anew: a tensor in for each of theirs, a tensor, or a pair,
  // tuple or vector of them, out. Captured here, once for each shape that they may have.
  template <typename R, typename... Args>
  Dataset map(const Function<R(Args...)>& function) const {
    static_assert((std::is_same_v<std::decay_t<Args>, at::Tensor> && ...),
                  "the function of a map takes the tensors of an element");
    return map_graphs(sizeof...(Args), [&](const std::vector<at::Tensor>& element) {
      return [&]<size_t... I>(std::index_sequence<I...>) {
        return function.graph(element[I]...);
      }(std::index_sequence_for<Args...>());
    });
  }
  template <typename F>
  Dataset map(F function) const {
    return map(trireme::function("map", std::move(function)));
  }

  Iterator iterator(const IteratorOptions& options = {}) const;

  // What elements look like; most often one specification, two where the last batch is smaller.
  const std::vector<ElementSpec>& element_specs() const;
  const ElementSpec& element_spec() const { return element_specs()[0]; }
  int64_t size() const;  // of elements; kForever: there is no end
  // "range(1, 6).batch(2)"
  std::string describe() const;

  const std::shared_ptr<const internal::DatasetStep>& last() const { return last_; }

 private:
  Dataset map_graphs(size_t tensors,
                     const std::function<Graph(const std::vector<at::Tensor>&)>& graph) const;

  std::shared_ptr<const internal::DatasetStep> last_;
};

}  // namespace trireme
