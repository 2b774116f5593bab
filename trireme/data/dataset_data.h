#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/statusor.h"
#include "trireme/data/dataset.h"
#include "trireme/data/dataset.pb.h"

// Conversion of a dataset to plain data, by which it is sent to workers, and back.
namespace trireme::internal {

struct DatasetData {
  proto::DatasetDef def;
  std::vector<at::Tensor> tensors;
};

DatasetData data_of(const Dataset& dataset);
// Makes a dataset from data that a peer has sent. All of it is checked. Errors name the step.
absl::StatusOr<Dataset> dataset_from(DatasetData data);

}  // namespace trireme::internal
