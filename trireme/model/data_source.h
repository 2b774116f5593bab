#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <variant>
#include <vector>

#include "trireme/base/access.h"
#include "trireme/data/dataset.h"
#include "trireme/data/dataset_creator.h"

namespace trireme {

// Data for fit() and evaluate(), made implicitly: of a dataset of batches, of a function that makes
// the dataset of each worker, or of tensors whose first axis counts examples.
//
// An element of a dataset is a batch: the inputs, the targets, and maybe the weights of the
// examples. Under parameter servers, a dataset is the same on every worker.
class DataSource {
 public:
  // Stands for no data.
  DataSource() = default;
  // Stands for a dataset of batches.
  DataSource(Dataset dataset) : source_(std::move(dataset)) {}  // NOLINT
  // Stands for a dataset of each worker.
  DataSource(DatasetCreator creator) : source_(std::move(creator)) {}  // NOLINT
  // Stands for tensors: the inputs, the targets, and maybe the weights. They are divided into
  // batches of the option batch_size.
  DataSource(std::vector<at::Tensor> tensors) : source_(std::move(tensors)) {}  // NOLINT
  // Stands for inputs and targets.
  DataSource(std::pair<at::Tensor, at::Tensor> tensors)  // NOLINT
      : source_(std::vector<at::Tensor>{tensors.first, tensors.second}) {}

  // Returns true if it stands for no data.
  bool empty() const { return std::holds_alternative<std::monostate>(source_); }

 private:
  friend struct internal::Access<DataSource>;
  using Source = std::variant<std::monostate, std::vector<at::Tensor>, Dataset, DatasetCreator>;

  Source source_;
};

template <>
struct internal::Access<DataSource> {
  static const DataSource::Source& source(const DataSource& data) { return data.source_; }
};

}  // namespace trireme
