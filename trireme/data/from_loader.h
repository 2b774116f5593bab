#pragma once

#include <string>
#include <vector>

#include "trireme/data/column.h"
#include "trireme/data/generator.h"

namespace trireme {

// Makes a generator whose elements are the batches of a data loader of torch::data:
//
//   const auto digits = tr::from_loader(
//       "digits", {{"images", torch::kFloat, {-1, 1, 28, 28}}, {"labels", torch::kLong, {-1}}}, []
//       {
//         auto images = torch::data::datasets::MNIST("mnist").map(
//             torch::data::transforms::Stack<>());
//         return torch::data::make_data_loader(std::move(images), 64);
//       });
//   tr::Iterator batches = digits.dataset().iterator();
//
// A batch is an example with a tensor `data` and maybe a tensor `target`, a tensor, or a vector of
// tensors. `make` is called at the beginning of each repetition. A random sampler of the loader
// draws from a generator that is seeded for the repetition, so that an iterator which continues
// after a restart sees the same batches. To divide the batches among workers, use a sampler that is
// not random, and Dataset::shuffle(). See generator() for the other rules.
template <typename F>
NamedGenerator from_loader(std::string name, std::vector<Column> columns, F make);

}  // namespace trireme

#include "trireme/data/from_loader_inl.h"
