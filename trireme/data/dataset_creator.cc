#include "trireme/data/dataset_creator.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme {

DatasetCreator::DatasetCreator(std::function<Dataset(const InputContext&)> dataset_function)
    : dataset_function_(std::move(dataset_function)) {
  if (dataset_function_) return;
  throw Error(ErrorCode::kInvalidArgument,
              "a DatasetCreator needs a function that makes a dataset, but it is empty");
}

}  // namespace trireme
