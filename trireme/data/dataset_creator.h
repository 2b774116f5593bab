#pragma once

#include <functional>

#include "trireme/data/dataset.h"
#include "trireme/data/input_context.h"

namespace trireme {

// Makes the dataset of each worker by a function, which is told for which worker it is called.
// Thread-safe if the function is.
//
//   tr::DatasetCreator creator([](const tr::InputContext& context) {
//     return tr::Dataset::csv("train-*.csv").shard(context).shuffle(1000).repeat().batch(64);
//   });
class DatasetCreator {
 public:
  // Keeps the function. Throws Error if it is empty.
  explicit DatasetCreator(std::function<Dataset(const InputContext&)> dataset_function);

  // Returns the dataset of a worker. Rethrows what the function throws.
  Dataset make(const InputContext& context) const { return dataset_function_(context); }
  // Does the same, so that a creator can be passed as a dataset function.
  Dataset operator()(const InputContext& context) const { return make(context); }

 private:
  std::function<Dataset(const InputContext&)> dataset_function_;
};

}  // namespace trireme
