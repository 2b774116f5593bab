#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/access.h"
#include "trireme/data/element.h"
#include "trireme/data/iterator.h"
#include "trireme/function/function.h"
#include "trireme/graph/graph.h"

namespace trireme {
namespace internal {
struct DatasetStep;
}

// Options of Dataset::batch().
struct BatchOptions {
  // True to drop the last batch if it has fewer elements than the others.
  bool drop_remainder = false;
};

// Options of Dataset::shuffle().
struct ShuffleOptions {
  // Seed of the order. Without it, the seed of tr::set_seed() at the time of the call is used.
  std::optional<uint64_t> seed;
};

// Options of Dataset::iterator().
struct IteratorOptions {
  // Seed of the elements. Iterators over one dataset with the same seed give the same elements in
  // the same order. Another seed gives another order of the same data, and other random numbers in
  // maps.
  uint64_t seed = 0;
};

// A source of elements and a list of steps that are applied to them. An element is a list of
// tensors. A dataset is plain data: it is made in the program, and iterators over it may be made in
// the program or on workers. Immutable: every step returns a new dataset. Copies are cheap.
// Thread-safe.
//
//   tr::Dataset batches = tr::Dataset::from_tensors({x, y}).shuffle(1000).repeat().batch(32);
//
// A step throws Error, which names the step, if its arguments are not valid.
class Dataset {
 public:
  // Stands for an endless number of repetitions or elements.
  static constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

  // Gives the numbers from 0 up to but not including `end`, as int64 scalars.
  static Dataset range(int64_t end);
  // Gives the numbers from `begin` up to but not including `end`, as int64 scalars. A negative
  // `step` counts down.
  static Dataset range(int64_t begin, int64_t end, int64_t step = 1);
  // Gives the rows of the tensors along axis 0: element i has row i of each tensor. All tensors
  // must have the same number of rows. Contiguous tensors are not copied, and elements may be views
  // of them: write neither to the tensors nor to the elements.
  static Dataset from_tensors(std::vector<at::Tensor> tensors);

  // Stacks every `size` consecutive elements into one. The last batch may be smaller.
  Dataset batch(int64_t size, const BatchOptions& options = {}) const;
  // Shuffles elements: keeps a buffer of `buffer` elements full and draws from it at random. A
  // buffer as large as the dataset gives every order with equal probability. With a smaller one an
  // element comes at most `buffer - 1` places too early. Each repetition has another order.
  Dataset shuffle(int64_t buffer, const ShuffleOptions& options = {}) const;
  // Repeats the elements `count` times, or endlessly.
  Dataset repeat(int64_t count = kForever) const;
  // Gives the first `count` elements, or all elements if there are fewer.
  Dataset take(int64_t count) const;
  // Gives all elements but the first `count`.
  Dataset skip(int64_t count) const;
  // Replaces each element with the result of a function (tr::function), which takes one argument
  // for each tensor of the element and returns a tensor, or a pair, tuple or vector of tensors:
  //
  //   dataset.map([](const torch::Tensor& x, const torch::Tensor& y) {
  //     return std::make_pair(x / 255, y);
  //   });
  //
  // The function is captured by this call, once for each shape that elements may have, so it
  // follows the rules of captured functions. It must not use variables.
  template <typename R, typename... Args>
  Dataset map(const Function<R(Args...)>& function) const;
  // Does the same for a lambda or another callable, from which it makes a captured function.
  template <typename F>
  Dataset map(F function) const;

  // Returns an iterator that starts at the first element.
  Iterator iterator(const IteratorOptions& options = {}) const;

  // Returns the dtypes and shapes that elements may have: one specification in most cases, two if
  // the last batch is smaller.
  const std::vector<ElementSpec>& element_specs() const;
  // Returns the first of element_specs().
  const ElementSpec& element_spec() const { return element_specs()[0]; }
  // Returns the number of elements; kForever if they never end.
  int64_t size() const;
  // Returns the steps in readable form, as "range(1, 6).batch(2)".
  std::string describe() const;

 private:
  friend struct internal::Access<Dataset>;
  // Makes a dataset from the last of its steps.
  explicit Dataset(std::shared_ptr<const internal::DatasetStep> last);
  // Adds a map of elements with `tensors` tensors. `graph` captures its function for an element.
  Dataset map_graphs(size_t tensors,
                     const std::function<Graph(const std::vector<at::Tensor>&)>& graph) const;

  std::shared_ptr<const internal::DatasetStep> last_;
};

}  // namespace trireme

#include "trireme/data/dataset_inl.h"
