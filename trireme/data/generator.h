#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/data/column.h"
#include "trireme/data/dataset.h"

namespace trireme {

// Makes one element, a list of tensors, at each call; nullopt at the end. It must not write to
// tensors that it has returned.
using NextElement = std::function<std::optional<std::vector<at::Tensor>>()>;

// A source of elements that a function of the program makes, for data that no other source reads.
// See generator(). Copies are cheap.
class NamedGenerator {
 public:
  // Registers the generator. Throws Error if this program has made one of the same name.
  NamedGenerator(std::string name, std::vector<Column> columns,
                 std::function<NextElement(uint64_t seed)> start);

  // Returns a dataset of the elements. Throws Error if a column is not valid.
  Dataset dataset() const;
  // Returns the name by which tasks find it.
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::vector<Column> columns_;
};

// Makes a generator. Iterators over its dataset call `start` at the beginning of each repetition,
// and then the function that it returns, once for each element:
//
//   const auto squares = tr::generator("squares", {{"square", torch::kLong}}, [](uint64_t seed) {
//     return [i = int64_t{0}]() mutable -> std::optional<std::vector<torch::Tensor>> {
//       if (i == 10) return std::nullopt;
//       ++i;
//       return {{torch::tensor(i * i)}};
//     };
//   });
//   tr::Dataset batches = squares.dataset().batch(2);
//
// `columns` are the types and shapes of the tensors of an element. A size of -1 stands for any.
//
// Workers find a generator by its name, so they must run the program's own binary. Make it before
// main() or at its beginning, on every task. `start` is called on several threads. With the same
// seed it must give the same elements, since an iterator that continues after a restart draws the
// elements before its position again. The seed differs for each repetition and each seed of an
// iterator, and so for each worker: a generator whose order follows from it cannot be divided by
// shard() or Shard::kData, which need the same order on all workers.
NamedGenerator generator(std::string name, std::vector<Column> columns,
                         std::function<NextElement(uint64_t seed)> start);

}  // namespace trireme
